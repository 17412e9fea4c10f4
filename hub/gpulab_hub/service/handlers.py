"""Who asks, and how the service says no: the base of every handler.

A request comes with a token of the hub in its Authorization header, or with the cookie that signing in by the
hub left; whatever changes something by cookie needs the page's own token too (_xsrf). Every error has one
shape, `gpulab_hub.service.wire.Problem`, and nothing of the service may be kept by a cache.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, TypeVar

from jupyterhub.services.auth import HubOAuthCallbackHandler, HubOAuthenticated, UserNotAllowed
from tornado import web

from gpulab_hub.names import shown
from gpulab_hub.service.lab import ServiceLab
from gpulab_hub.service.wire import Model
from gpulab_hub.visible import Viewer
from gpulab_server.hubauth import LabOAuth
from gpulab_spawner.errors import LabError

log = logging.getLogger(__name__)
T = TypeVar("T")

_SAFE = ("GET", "HEAD", "OPTIONS")
_TOLD = {
    400: ("bad_request", "The request is not one that the service understands.", "See openapi.json."),
    401: ("unauthenticated", "Nobody is signed in.", "Send a token of the hub: Authorization: token ..."),
    403: ("forbidden", "This is not yours to do.", "Ask an admin."),
    404: ("not_found", "There is nothing here.", "See openapi.json for what there is."),
    405: ("method_not_allowed", "This cannot be done here.", "See openapi.json for what can."),
    413: ("too_large", "The request is too large.", "Send less."),
    503: ("unavailable", "The service cannot answer now.", "Try again in a minute."),
}


class Missing(LabError):
    """No such address, or no such method there, or the like: HTTP's own refusals."""

    def __init__(self, status: int, message: str = "") -> None:
        code, words, next_step = _TOLD.get(
            status,
            ("internal", "Something went wrong that the lab has no words for.", "The lab's log says more."),
        )
        super().__init__(message or words, next_step=next_step)
        self.code, self.status = code, status  # type: ignore[misc]


class Base(HubOAuthenticated, web.RequestHandler):  # type: ignore[misc]  # jupyterhub ships no types
    """A handler that knows its lab."""

    def initialize(self, lab: ServiceLab, auth: LabOAuth) -> None:
        """Take what the application passes."""
        self.lab = lab
        self.hub_auth = auth
        # Else current_user asks the hub once more, and blocks.
        self._hub_auth_user_cache: dict[str, Any] | None = None

    def set_default_headers(self) -> None:
        """Let nothing be kept or guessed."""
        self.set_header("Cache-Control", "no-store")
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Content-Security-Policy", "frame-ancestors 'none'")

    def compute_etag(self) -> None:
        """Have none: nothing is kept, so nothing is compared."""

    async def blocking(self, function: Callable[..., T], *arguments: Any, **more: Any) -> T:
        """Run a blocking function in a thread."""
        return await asyncio.to_thread(function, *arguments, **more)

    async def who(self) -> Viewer | None:
        """Return who asks, None if that is not known.

        Raises:
            Missing: It is known, and they may not use the service, or their page's token is missing.
        """
        model = await self.hub_auth.get_user(self, sync=False)
        if model is None:
            cookie = self.hub_auth._get_token_cookie(self)
            if cookie and self.request.method not in _SAFE:
                raise Missing(403, "The page's own token (_xsrf) is missing or old: load the page again.")
            return None
        try:
            self.check_hub_user(model)
        except UserNotAllowed:
            raise Missing(403, f"{model['name']} may not use this service.") from None
        self._hub_auth_user_cache = model
        return await self.blocking(self.lab.viewer, model["name"], is_admin=bool(model.get("admin")))

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Answer with the one shape of errors."""
        error = kwargs.get("exc_info", (None, None))[1]
        found = as_error(status_code, error)
        self.set_status(found.status)
        self.set_header("Content-Type", "application/json")
        self.finish(found.as_json())

    def log_exception(self, kind: Any, error: Any, trace: Any) -> None:
        """Log what is a fault; a refusal is an answer."""
        if not isinstance(error, LabError | web.HTTPError) or getattr(error, "status", 500) >= 500:
            super().log_exception(kind, error, trace)


def as_error(status: int, error: object) -> LabError:
    """Return an exception as an error with code, message and next step; a bug tells nothing of itself."""
    if isinstance(error, LabError):
        return error
    if isinstance(error, web.HTTPError):
        words = error.log_message if status == HTTPStatus.SERVICE_UNAVAILABLE else ""
        return Missing(status, words or "")
    return Missing(status)


class Api(Base):
    """An endpoint for programs."""

    viewer: Viewer
    public = False
    """Whether it answers without asking who it is."""

    async def prepare(self) -> None:
        """Find out who asks.

        Raises:
            Missing: Nobody is signed in, or not somebody who may be here.
        """
        if self.request.method not in self.SUPPORTED_METHODS or self.public:
            return
        viewer = await self.who()
        if viewer is None:
            raise Missing(401)
        self.viewer = viewer

    def number(self, name: str) -> float | None:
        """Return a number from the query, None if it is not there.

        Raises:
            Missing: It is not a number.
        """
        text = self.get_query_argument(name, "")
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise Missing(400, f"{name} is not a number: {shown(text)}.")
        return value

    def answer(self, model: Model, status: int = 200) -> None:
        """Answer with a model."""
        self.set_status(status)
        self.set_header("Content-Type", "application/json")
        self.finish(model.model_dump_json())


class NotFound(Base):
    """Whatever has no address."""

    async def prepare(self) -> None:
        """Refuse.

        Raises:
            Missing: Always.
        """
        raise Missing(404)


class Callback(HubOAuthCallbackHandler):  # type: ignore[misc]
    """Where the hub sends a browser back to that has signed in."""

    def initialize(self, lab: ServiceLab, auth: LabOAuth) -> None:
        """Take what the application passes."""
        self.lab = lab
        self.hub_auth = auth

    set_default_headers = Base.set_default_headers
    write_error = Base.write_error
