"""Ask the hub who somebody is, and remember its answer for as long as that is safe.

JupyterHub's own `HubOAuth` keeps every answer for five minutes: somebody whose access was taken away stays in
for that long. With a short memory instead, a hub that is down for a moment makes every user's server answer
500. So the two answers are treated apart:

- A no counts at once, and nothing is remembered of it.
- A yes is asked again after 10 seconds (`FRESH`) while the hub answers.
- While the hub cannot be reached, hangs, or answers 5xx or 429, the last yes stays valid for 15 minutes
  (`GRACE`), counted from when it was given; the hub is asked again every 10 seconds, not at every request.

Tokens in URLs are refused everywhere, on websockets too: URLs end up in logs, histories and referrers.

This module serves two programs: the servers of users, in the image, and the lab's service, in the lab's own
environment. It therefore imports JupyterHub and nothing else of the lab.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from jupyterhub.httpclient import fetch
from jupyterhub.services.auth import HubOAuth
from jupyterhub.utils import make_ssl_context
from tornado.log import app_log
from tornado.web import HTTPError

FRESH = 10.0
"""Seconds for which an answer is used without asking again."""
GRACE = 900.0
"""Seconds for which the last yes stays valid while the hub is silent."""
TIMEOUT = 5.0
"""Seconds after which a hub that does not answer counts as silent."""

User = dict[str, Any]
"""The hub's model of a user or service."""


class HubSilent(Exception):
    """The hub gave no answer that says yes or no."""


@dataclass(slots=True)
class Memory:
    """What the hub said last. Pure: the time, in seconds of any one clock, is an argument."""

    _yes: dict[str, tuple[User, float]] = field(default_factory=dict)
    _silent_since: float | None = None
    _asked_in_silence: float = 0.0

    def recall(self, key: str, now: float) -> User | None:
        """Return the user of a key if the hub need not be asked, else None."""
        if key not in self._yes:
            return None
        user, at = self._yes[key]
        if now - at < FRESH:
            return user
        if self._silent_since is not None and now - self._asked_in_silence < FRESH:
            return self.last_yes(key, now)
        return None

    def last_yes(self, key: str, now: float) -> User | None:
        """Return the user of a key if the hub's last yes for it is recent enough to outlast its silence."""
        user, at = self._yes.get(key, (None, 0.0))
        return user if user is not None and now - at < GRACE else None

    def heard(self, key: str, user: User | None, now: float) -> None:
        """Note the hub's answer: a user, or None for a no."""
        self._silent_since = None
        self._yes = {k: held for k, held in self._yes.items() if now - held[1] < GRACE and k != key}
        if user is not None:
            self._yes[key] = (user, now)

    def silence(self, now: float) -> bool:
        """Note that the hub was silent; return whether this is the first time since it spoke."""
        first = self._silent_since is None
        self._silent_since = now if first else self._silent_since
        self._asked_in_silence = now
        return first


class LabOAuth(HubOAuth):  # type: ignore[misc]  # JupyterHub has no type hints
    """HubOAuth with the memory that this module describes.

    Args:
        clock: Returns seconds; only differences count.
        **kwargs: As for HubOAuth.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._clock = clock
        self._memory = Memory()
        self._asking: dict[tuple[asyncio.AbstractEventLoop, str], asyncio.Task[User | None]] = {}

    async def _check_hub_authorization(
        self, url: str, api_token: str, cache_key: str | None = None, use_cache: bool = True
    ) -> User | None:
        """Return the hub's model of a token's owner, None if the hub says no.

        Raises:
            HTTPError: 503 if the hub is silent and no recent yes helps; 500 if it refuses this server.
        """
        if not use_cache or cache_key is None:
            try:
                return await self._ask(url, api_token)
            except HubSilent as error:
                raise _unavailable() from error
        remembered = self._memory.recall(cache_key, self._clock())
        if remembered is not None:
            return remembered
        # A page asks for many things at once: one question answers them all. The key holds the loop, since
        # JupyterHub runs synchronous calls on a loop of their own.
        key = (asyncio.get_running_loop(), cache_key)
        task = self._asking.get(key)
        if task is None:
            task = self._asking[key] = key[0].create_task(self._ask_and_remember(url, api_token, cache_key))
            task.add_done_callback(lambda _: self._asking.pop(key, None))
        # Shielded: the browser that asked first may go away while others wait for the same answer.
        return await asyncio.shield(task)

    async def _ask_and_remember(self, url: str, api_token: str, cache_key: str) -> User | None:
        try:
            user = await self._ask(url, api_token)
        except HubSilent as error:
            now = self._clock()
            if self._memory.silence(now):
                app_log.warning("The hub is silent (%s); who was let in within 15 minutes stays in.", error)
            held = self._memory.last_yes(cache_key, now)
            if held is None:
                raise _unavailable() from error
            return held
        self._memory.heard(cache_key, user, self._clock())
        return user

    async def _ask(self, url: str, api_token: str) -> User | None:
        options: dict[str, Any] = {}
        if self.certfile or self.keyfile:
            options["ssl"] = make_ssl_context(self.keyfile, self.certfile, cafile=self.client_ca)
        try:
            reply = await fetch(
                url,
                headers={"Authorization": f"token {api_token}"},
                raise_for_status=False,
                timeout=aiohttp.ClientTimeout(total=TIMEOUT),
                **options,
            )
            status, text = reply.status, await reply.text()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise HubSilent(f"{type(error).__name__}: {error}") from error
        return _read(status, text)

    def _get_token_url(self, handler: Any) -> str:
        return ""

    def _persist_url_token_if_set(self, handler: Any) -> None:
        return None


def _read(status: int, text: str) -> User | None:
    if status == 403:
        return None
    if status >= 500 or status == 429:
        raise HubSilent(f"HTTP {status}")
    if status >= 400:
        # A question that the hub does not understand is a fault of the set-up, not of its health.
        raise HTTPError(500, f"The hub refused to say who you are (HTTP {status}); tell an administrator.")
    try:
        user = json.loads(text)
    except ValueError as error:
        raise HubSilent("an answer that is not JSON") from error
    if not isinstance(user, dict):
        raise HubSilent("an answer that is no user")
    return user


def _unavailable() -> HTTPError:
    return HTTPError(
        503,
        "The hub does not answer, so nobody can be signed in just now. "
        "Servers and what runs in them are not affected; try again in a minute.",
    )
