"""LabAuthenticator: who may sign in, and who still may.

The accounts are asked each time, never a set in the hub's memory: a removed account is out at the next
request, its cookies and its tokens with it. The hub's own allow lists stay empty; whoever has an account is
allowed.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from jupyterhub.auth import Authenticator
from tornado import web
from traitlets import Any as AnyTrait
from traitlets import Integer, Unicode, default

from gpulab_hub import names
from gpulab_hub.accounting.attempts import WrongTries
from gpulab_hub.accounts import Account, Accounts
from gpulab_hub.database import open_database
from gpulab_hub.signin import handlers, users_api
from gpulab_hub.signin.door import Door
from gpulab_hub.signin.origin import place_of, remember_browser
from gpulab_hub.signin.sessions import outlived, take_over
from gpulab_spawner.errors import LedgerUnavailable, TooManyAttempts, WrongPassword

_TRUSTED_SECONDS = 900.0
"""How long a last yes stays valid while the lab's database cannot be read."""


class LabAuthenticator(Authenticator):  # type: ignore[misc]  # jupyterhub ships no types
    """Sign-in with the lab's local accounts."""

    database_url = Unicode(help="SQLAlchemy URL of the lab's own database.").tag(config=True)
    password_min_length = Integer(10, help="Least number of characters of a new password.").tag(config=True)
    routes = AnyTrait(
        None, allow_none=True, help="A closure that returns further handlers: [(path, class, arguments)]."
    ).tag(config=True)
    accounts = AnyTrait(help="The accounts, opened at `database_url` when they are first needed.")
    door = AnyTrait(help="Checks passwords and counts wrong ones.")
    hashing = AnyTrait(help="The threads in which passwords are hashed.")

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._last_yes: dict[str, float] = {}

    @default("auth_refresh_age")
    def _default_auth_refresh_age(self) -> int:
        # One indexed query a second for somebody who is active; a removed account is out at once.
        return 1

    @default("auth_refresh_strict")
    def _default_auth_refresh_strict(self) -> bool:
        # Tokens too: the only auth info that goes stale here is an account that is gone.
        return True

    @default("any_allow_config")
    def _default_any_allow_config(self) -> bool:
        return True

    @default("accounts")
    def _default_accounts(self) -> Accounts:
        return Accounts(open_database(self.database_url), self.password_min_length)

    @default("door")
    def _default_door(self) -> Door:
        return Door(self.accounts, WrongTries())

    @default("hashing")
    def _default_hashing(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(2, thread_name_prefix="password")

    def get_handlers(self, app: Any) -> list[Any]:
        """Return the sign-in pages and what `routes` adds.

        The accounts are opened here, so that a hub without its database says so when it starts.
        """
        self.log.debug("Accounts are open: %s", self.door)
        more = self.routes() if self.routes else []
        return [*handlers.ROUTES, *users_api.ROUTES, *more]

    def validate_username(self, username: str) -> bool:
        """Return whether the lab carries a name."""
        return names.problem(username) is None and bool(super().validate_username(username))

    async def check_allowed(self, username: str, authentication: Any = None) -> bool:
        """Return whether a name has an account."""
        return await asyncio.to_thread(self.accounts.find, username) is not None

    async def authenticate(self, handler: Any, data: dict[str, str]) -> dict[str, Any] | None:
        """Return the hub's model of an account if the name and the password open it."""
        typed, password = data.get("username", ""), data.get("password", "")
        place = place_of(handler, typed.lower())
        try:
            account = await self.hash(self.door.enter, typed, password, place, time.monotonic())
        except WrongPassword:
            return None
        except TooManyAttempts as refused:
            self.log.warning("Sign-in of %s from %s refused for now", names.shown(typed), place.address)
            raise too_many(refused) from None
        except LedgerUnavailable as refused:
            raise web.HTTPError(refused.status, str(refused)) from None
        return self.admit(handler, account)

    def admit(self, handler: Any, account: Account) -> dict[str, Any]:
        """Return the hub's model of somebody whose account was just opened.

        Raises:
            web.HTTPError: A server of an earlier person of this name still runs.
        """
        user = handler.find_user(account.name)
        if user is not None and outlived(user, account.created_at):
            if any(spawner.active for spawner in user.spawners.values()):
                raise web.HTTPError(
                    409,
                    "A server of the earlier account of this name still runs. Ask an admin to stop it.",
                )
            self.log.warning("Ending what the earlier user %s of the hub had", names.shown(account.name))
            take_over(handler.db, user)
        remember_browser(handler, account.name)
        self._last_yes[account.name] = time.monotonic()
        return {"name": account.name, "admin": account.admin}

    async def refresh_user(self, user: Any, handler: Any = None) -> bool | dict[str, Any]:
        """Return whether a user's account is still theirs, or what changed about it."""
        try:
            account = await asyncio.to_thread(self.accounts.find, user.name)
        except LedgerUnavailable:
            self.log.exception("The lab's database cannot be read; relying on the last answer")
            return time.monotonic() - self._last_yes.get(user.name, -_TRUSTED_SECONDS) < _TRUSTED_SECONDS
        if account is None or outlived(user, account.created_at):
            self._last_yes.pop(user.name, None)
            return False
        self._last_yes[user.name] = time.monotonic()
        return True if user.admin == account.admin else {"name": account.name, "admin": account.admin}

    async def hash(self, function: Callable[..., Account], *arguments: Any) -> Account:
        """Run something that hashes a password in the threads kept for that."""
        return await asyncio.get_running_loop().run_in_executor(self.hashing, function, *arguments)


def too_many(refused: TooManyAttempts) -> web.HTTPError:
    """Return the hub's error for a refusal for now, which says how long to wait."""
    error = web.HTTPError(429, str(refused))
    seconds = math.ceil(float(str(refused.details["seconds"])))
    # The hub copies these into its answer.
    error.headers = {"Retry-After": str(seconds)}  # type: ignore[attr-defined]
    return error
