"""The hub's REST API of one user, where a rename or a removal is the lab's too.

The hub renames a user without a word to anybody: the account would keep the old name, and the next start
would make a new person with an empty home. And it removes no user whose named server runs; it fails with 500
once the default one is stopped. The admin page, `gpulab user remove` and scripts all come this way.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from jupyterhub.apihandlers.users import UserAPIHandler
from jupyterhub.scopes import needs_scope
from tornado import web

from gpulab_hub import membership, names
from gpulab_spawner.errors import LabError

_DOING = {"spawn": "is just starting", "stop": "is just stopping"}


class LabUserAPIHandler(UserAPIHandler):  # type: ignore[misc]  # jupyterhub ships no types
    """PATCH and DELETE of a user; what else there is stays the hub's."""

    @needs_scope("admin:users")  # type: ignore[untyped-decorator]
    async def patch(self, user_name: str) -> None:
        """Change a user; a new name is the lab's account's and person's too."""
        user, new = self.find_user(user_name), self._new_name(user_name)
        if user is None or new is None or self.find_user(new) is not None:
            await super().patch(user_name)
            return
        if user.active:
            raise web.HTTPError(
                409,
                f"A server of {names.shown(user_name)} runs, and its address holds the name. "
                "Stop it first, then rename; files and settings stay.",
            )
        # Blocking on purpose: no start may come between the two names, or it would make a second person.
        self._rename(user_name, new)
        try:
            await super().patch(user_name)
        except BaseException:
            self._rename(new, user_name)
            raise
        # What the hub remembers of a user holds addresses made of the name: it is read anew.
        self.users.pop(user.id, None)

    @needs_scope("delete:users")  # type: ignore[untyped-decorator]
    async def delete(self, user_name: str) -> None:
        """Remove a user with all of their servers; account and name go, files stay."""
        user = self.find_user(user_name)
        if user is not None and user.name != self.current_user.name:
            await asyncio.gather(*(self._stop(user, server) for server in list(user.spawners)))
            # Before the hub forgets the user: what fails in between is repaired by asking once more.
            await self._leave(user_name)
        await super().delete(user_name)

    def _new_name(self, user_name: str) -> str | None:
        body = self.get_json_body()
        name = body.get("name") if isinstance(body, dict) else None
        if not isinstance(name, str):
            return None
        new = str(self.authenticator.normalize_username(name))
        return new if new != user_name and self.authenticator.validate_username(new) else None

    def _rename(self, old: str, new: str) -> None:
        try:
            membership.rename(self.authenticator.accounts.engine, old, new)
        except LabError as error:
            raise web.HTTPError(error.status if error.status >= 500 else 409, str(error)) from error

    async def _stop(self, user: Any, server: str) -> None:
        spawner = user.spawners[server]
        if not spawner.active:
            return
        if not spawner.pending:
            await self.stop_single_user(user, server)
        if spawner.active:
            doing = _DOING.get(spawner.pending, "runs still")
            raise web.HTTPError(409, f"The server {spawner._log_name} {doing}. Try again in a minute.")

    async def _leave(self, user_name: str) -> None:
        engine = self.authenticator.accounts.engine
        try:
            person = await asyncio.to_thread(membership.leave, engine, user_name, time.time())
        except LabError as error:
            raise web.HTTPError(error.status, str(error)) from error
        # None where the command freed the name already, and said where the files are.
        files = f"; files stay in {person.slug} below the storage root" if person else ""
        self.log.warning("%s was removed by %s%s", user_name, self.current_user.name, files)


ROUTES = [(r"/api/users/([^/]+)", LabUserAPIHandler)]
"""Before the hub's own of the same address, since the authenticator's come first."""
