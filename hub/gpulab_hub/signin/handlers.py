"""The hub's pages of sign-in: the form, an invitation, another password.

An invitation's secret stands after the `#` of its link, so a browser never sends it when it fetches the page,
and no log of any proxy holds it. The page's script moves it from the address into the form; without scripts
the form has a field for it. What the browser posts first only asks whose invitation it is; the post that sets
a password spends it.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from jupyterhub.handlers.base import BaseHandler
from jupyterhub.handlers.login import LoginHandler
from jupyterhub.utils import url_path_join
from tornado import web

from gpulab_hub.accounts import Account
from gpulab_hub.signin.origin import place_of, remember_browser
from gpulab_hub.signin.sessions import end_sessions
from gpulab_spawner.errors import InviteRefused, LedgerUnavailable, Refusal

_WRONG = "The name or the password is not right."
_STALE = "This page was open for too long. Send the form once more."
_LONGEST_SECRET = 2048


class SignInHandler(LoginHandler):  # type: ignore[misc]  # jupyterhub ships no types
    """The hub's sign-in form, with one sentence for every wrong try."""

    async def post(self) -> None:
        """Sign in with a name and a password."""
        data = {
            "username": self.get_body_argument("username", "", strip=True),
            "password": self.get_body_argument("password", "", strip=False),
        }
        user = await self.login_user(data)
        if user:
            self._jupyterhub_user = user
            self.redirect(self.get_next_url(user))
            return
        self.set_status(403)
        self.finish(await self._render(login_error=_WRONG, username=data["username"]))


class _FormHandler(BaseHandler):  # type: ignore[misc]
    """A page whose form says itself what is wrong, a form that was open for too long included."""

    stale = False

    def set_default_headers(self) -> None:
        """Keep what is typed here out of caches and out of other sites' logs."""
        super().set_default_headers()
        self.set_header("Cache-Control", "no-store")
        self.set_header("Referrer-Policy", "no-referrer")

    def check_xsrf_cookie(self) -> None:
        """Note a form without this page's token; `post` does nothing then but show the form again."""
        try:
            super().check_xsrf_cookie()
        except web.HTTPError as error:
            self.log.warning("A form without its token: %s", error)
            self.stale = True

    def field(self, name: str) -> str:
        """Return a field of the posted form as it was typed."""
        value: str = self.get_body_argument(name, "", strip=False)
        return value

    async def show(self, template: str, status: int = 200, **context: Any) -> None:
        """Finish with a page of the lab."""
        self.set_status(status)
        self.finish(
            await self.render_template(
                template,
                # The hub writes the token into each page's script; the forms carry it too.
                xsrf=self.xsrf_token.decode("ascii"),
                min_length=self.authenticator.accounts.min_length,
                **context,
            )
        )


class InviteHandler(_FormHandler):
    """The page that an invitation opens: /hub/invite#SECRET."""

    async def get(self) -> None:
        """Show the form that the page's script fills from the address."""
        await self.show("invite.html", state="open")

    async def post(self) -> None:
        """Show whose invitation it is, or set the password and sign in."""
        secret = secret_of(self.field("secret"))
        try:
            account = await asyncio.to_thread(self.authenticator.accounts.opens, secret, time.time())
        except InviteRefused as refused:
            await self.show("invite.html", refused.status, state="refused", refused=refused)
            return
        except LedgerUnavailable as refused:
            raise web.HTTPError(refused.status, str(refused)) from None
        if self.stale:
            await self._choose(account, secret, 403, message=_STALE)
        elif "password" not in self.request.body_arguments:
            await self._choose(account, secret)
        else:
            await self._claim(account, secret)

    async def _claim(self, account: Account, secret: str) -> None:
        authenticator = self.authenticator
        password, again = self.field("password"), self.field("again")
        try:
            opened = await authenticator.hash(
                authenticator.accounts.claim, secret, password, again, time.time()
            )
        except InviteRefused as refused:
            await self.show("invite.html", refused.status, state="refused", refused=refused)
            return
        except Refusal as refused:
            await self._choose(account, secret, refused.status, message=str(refused))
            return
        model = authenticator.admit(self, opened)
        user = await self.auth_to_user(model)
        # Whoever was signed in, here as somebody else or elsewhere with the old password, is no longer.
        self.clear_login_cookie()
        end_sessions(self.db, user)
        self.set_session_cookie()
        self.set_login_cookie(user)
        self.log.info("%s used an invitation", user.name)
        self.redirect(url_path_join(self.hub.base_url, "home"))

    async def _choose(self, account: Account, secret: str, status: int = 200, message: str = "") -> None:
        other = self.current_user.name if self.current_user else None
        await self.show(
            "invite.html",
            status,
            state="choose",
            account=account.name,
            secret=secret,
            first=account.password_set_at is None,
            other=other if other != account.name else None,
            message=message,
        )


class PasswordHandler(_FormHandler):
    """The page where somebody changes their password: /hub/password."""

    @web.authenticated
    async def get(self) -> None:
        """Show the form."""
        await self._page(done=self.get_query_argument("changed", "") == "1")

    @web.authenticated
    async def post(self) -> None:
        """Set the new password and end this person's other sessions."""
        if self.stale:
            await self._page(403, message=_STALE)
            return
        authenticator, user = self.authenticator, self.current_user
        typed = self.field("old"), self.field("password"), self.field("again")
        place = place_of(self, user.name)
        try:
            await authenticator.hash(
                authenticator.door.change, user.name, *typed, place, time.monotonic(), time.time()
            )
        except Refusal as refused:
            await self._page(refused.status, message=str(refused))
            return
        session = self.get_session_cookie()
        end_sessions(self.db, user, keep=session)
        self.set_login_cookie(user)
        remember_browser(self, user.name)
        self.log.info("%s changed their password", user.name)
        self.redirect(url_path_join(self.hub.base_url, "password") + "?changed=1", status=303)

    async def _page(self, status: int = 200, message: str = "", done: bool = False) -> None:
        await self.show("password.html", status, message=message, done=done)


def secret_of(pasted: str) -> str:
    """Return the secret in what was pasted: a whole link, the part after its `#`, or the secret."""
    return pasted[-_LONGEST_SECRET:].rpartition("#")[2].strip()


ROUTES = [
    (r"/login", SignInHandler),
    (r"/invite", InviteHandler),
    (r"/password", PasswordHandler),
]
