"""The door: a name and a password in, an account or a refusal out, with wrong tries counted.

Blocking, and meant for a small pool of threads: hashing takes some tens of milliseconds and 64 MiB each. The
count is looked at when a thread takes the try up, not when it arrives, so a burst of tries sent at once gains
nothing over one after another but the few that the pool runs side by side.
"""

from __future__ import annotations

from threading import Lock

from gpulab_hub import names
from gpulab_hub.accounting.attempts import Place, WrongTries, spoken
from gpulab_hub.accounts import Account, Accounts
from gpulab_spawner.errors import NameRefused, TooManyAttempts, WrongPassword


class Door:
    """Checks passwords and counts the wrong ones.

    Args:
        accounts: The local accounts.
        tries: The wrong tries so far.
    """

    def __init__(self, accounts: Accounts, tries: WrongTries) -> None:
        accounts.warm_up()
        self._accounts = accounts
        self._tries = tries
        self._lock = Lock()

    def enter(self, typed: str, password: str, place: Place, now: float) -> Account:
        """Return the account that a name and a password open.

        Args:
            typed: The name as it was typed.
            password: The password.
            place: Where the try comes from.
            now: Seconds of a clock that only goes forward.

        Raises:
            WrongPassword: One of the two is not right.
            TooManyAttempts: Too many were wrong before; this one was not looked at.
        """
        name = _carried(typed)
        counted = typed if name is None else name
        self._admit(counted, place, now)
        try:
            # No account has the empty name, so a name that none can have fares like a stranger's.
            account = self._accounts.check(name or "", password)
        except WrongPassword:
            self._count(counted, place, now)
            raise
        with self._lock:
            self._tries.right(counted, place)
        return account

    def change(
        self, name: str, old: str, new: str, again: str, place: Place, now: float, at: float
    ) -> Account:
        """Set another password for who knows the present one; a wrong present one counts as at sign-in.

        Args:
            name: Name of the account.
            old: The present password.
            new: The new password.
            again: The second typing of it.
            place: Where the try comes from.
            now: Seconds of a clock that only goes forward.
            at: Unix time in seconds.

        Raises:
            WrongPassword: The present password is another.
            TooManyAttempts: Too many were wrong before.
            PasswordRefused: The new password breaks a rule.
        """
        self._admit(name, place, now)
        try:
            return self._accounts.change(name, old, new, again, at)
        except WrongPassword:
            self._count(name, place, now)
            raise WrongPassword("The current password is not right.") from None

    def _admit(self, name: str, place: Place, now: float) -> None:
        with self._lock:
            seconds = self._tries.wait(name, place, now)
        if seconds > 0:
            raise TooManyAttempts(
                "Too many wrong passwords were sent from here.",
                next_step=f"Try again in {spoken(seconds)}.",
                details={"seconds": seconds},
            )

    def _count(self, name: str, place: Place, now: float) -> None:
        with self._lock:
            self._tries.wrong(name, place, now)


def _carried(typed: str) -> str | None:
    try:
        return names.canonical(typed)
    except NameRefused:
        return None
