"""Local accounts: a name that only an invitation opens and a password then guards.

JupyterHub's password stores do not serve here: NativeAuthenticator 1.3.0, the kept one, cannot log anybody in
on JupyterHub 6. So the store is the lab's own, and what is hard in it is argon2-cffi's: hashing, comparing,
and telling when a hash was made with older parameters.

An invitation is a secret of 256 random bits in a link. The database holds only its SHA-256. At most one of an
account is open; a newer one voids it. It is spent by the transaction that stores the password and by nothing
else, so opening the link, a mail scanner that fetches it, or a form sent back with an error leave it as it
was.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from sqlalchemy import Engine, delete, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from gpulab_hub import names, passwords
from gpulab_hub.database import reading, writing
from gpulab_hub.roster import Entry
from gpulab_hub.schema import Account as Row
from gpulab_hub.schema import Invite
from gpulab_spawner.errors import AccountExists, AccountMissing, InviteRefused, WrongPassword

_ASK = "Ask an admin of the lab for a new link."


@dataclass(frozen=True, slots=True)
class Account:
    """A local account.

    Attributes:
        name: Its name, which is the name in the hub.
        admin: Whether they look after the lab.
        created_at: Unix time in seconds.
        password_set_at: When the password was last set, None before the first invitation was used.
        invite_expires_at: When the open invitation ends, None if none is open.
    """

    name: str
    admin: bool
    created_at: float
    password_set_at: float | None
    invite_expires_at: float | None = None


@dataclass(frozen=True, slots=True)
class Invitation:
    """A freshly made invitation. This is the only time that its secret is known.

    Attributes:
        name: Name of the account that it opens.
        secret: 43 characters, safe in an address.
        expires_at: Unix time in seconds.
    """

    name: str
    secret: str
    expires_at: float


class Accounts:
    """The local accounts of one lab.

    Args:
        engine: The lab's own database.
        min_length: Least number of characters of a new password.
        hasher: How passwords are hashed.
    """

    def __init__(self, engine: Engine, min_length: int = 10, hasher: PasswordHasher | None = None) -> None:
        self._engine = engine
        self.min_length = min_length
        self._hasher = hasher or PasswordHasher()

    @property
    def engine(self) -> Engine:
        """The lab's own database."""
        return self._engine

    def add(self, entries: Sequence[Entry], now: float, expires_at: float) -> tuple[Invitation, ...]:
        """Make accounts, each with an open invitation: all of them or none.

        Raises:
            AccountExists: One is there already.
        """
        try:
            with writing(self._engine) as connection, Session(connection) as session:
                for entry in entries:
                    session.add(Row(name=entry.name, admin=entry.admin, created_at=now))
                session.flush()
                return tuple(_issue(session, entry.name, now, expires_at) for entry in entries)
        except IntegrityError:
            there = sorted(self.existing(entry.name for entry in entries))
            listed = ", ".join(names.shown(name) for name in there[:5]) or "one of the names"
            raise AccountExists(
                f"There is an account already: {listed}.",
                next_step="`gpulab user invite NAME` makes a new link for it.",
            ) from None

    def existing(self, wanted: Iterable[str]) -> frozenset[str]:
        """Return which of these names have an account."""
        with reading(self._engine) as connection, Session(connection) as session:
            # Asked one by one: a class list may be longer than a statement may have parameters.
            return frozenset(name for name in wanted if session.get(Row, name))

    def find(self, name: str) -> Account | None:
        """Return the account of a canonical name, None if there is none."""
        with reading(self._engine) as connection, Session(connection) as session:
            row = session.get(Row, name)
            return _account(row, None) if row else None

    def everyone(self, now: float) -> tuple[Account, ...]:
        """Return all accounts by name, with their open invitations."""
        with reading(self._engine) as connection, Session(connection) as session:
            live = select(Invite.account, Invite.expires_at).where(
                Invite.closed_at.is_(None), Invite.expires_at > now
            )
            ends = {row.account: row.expires_at for row in session.execute(live)}
            return tuple(
                _account(row, ends.get(row.name)) for row in session.scalars(select(Row).order_by(Row.name))
            )

    def remove(self, name: str) -> None:
        """Remove an account with its invitations.

        Raises:
            AccountMissing: There is none of this name.
        """
        with writing(self._engine) as connection:
            connection.execute(delete(Invite).where(Invite.account == name))
            if not connection.execute(delete(Row).where(Row.name == name)).rowcount:
                raise _missing(name)

    def invite(self, name: str, now: float, expires_at: float) -> Invitation:
        """Issue a new invitation and void the open one.

        A password that is set stays until the new link is used.

        Raises:
            AccountMissing: There is no account of this name.
        """
        with writing(self._engine) as connection, Session(connection) as session:
            # The row is locked first: of two issued at once the later wins, and neither fails.
            if session.scalar(select(Row).where(Row.name == name).with_for_update()) is None:
                raise _missing(name)
            session.execute(
                update(Invite)
                .where(Invite.account == name, Invite.closed_at.is_(None))
                .values(closed_at=now, outcome="replaced")
            )
            return _issue(session, name, now, expires_at)

    def opens(self, secret: str, now: float) -> Account:
        """Return the account that an invitation opens, without spending it.

        Raises:
            InviteRefused: It opens nothing.
        """
        with reading(self._engine) as connection, Session(connection) as session:
            return _account(_opened(session, secret, now), None)

    def claim(self, secret: str, password: str, again: str, now: float) -> Account:
        """Set the password of the account that an invitation opens, and spend the invitation.

        Raises:
            InviteRefused: It opens nothing, or somebody else spent it first.
            PasswordRefused: The password breaks a rule; the invitation stays open.
        """
        passwords.accept(password, again, self.opens(secret, now).name, self.min_length)
        hashed = self._hash(password)
        with writing(self._engine) as connection, Session(connection) as session:
            # Spent by a condition, so that of two at once exactly one changes the row and sets its password.
            spent = connection.execute(
                update(Invite)
                .where(
                    Invite.secret_hash == _digest(secret), Invite.closed_at.is_(None), Invite.expires_at > now
                )
                .values(closed_at=now, outcome="used")
            )
            if not spent.rowcount:
                _opened(session, secret, now)
                raise _refusal("used")
            claimed = select(Row).join(Invite, Invite.account == Row.name)
            row = session.scalars(claimed.where(Invite.secret_hash == _digest(secret))).one()
            row.password_hash, row.password_set_at = hashed, now
            session.flush()
            return _account(row, None)

    def check(self, name: str, password: str) -> Account:
        """Return the account if this is its password. A name without an account costs the same work.

        Raises:
            WrongPassword: The name or the password is not right.
        """
        if passwords.too_long(password):
            raise _wrong()
        with reading(self._engine) as connection, Session(connection) as session:
            row = session.get(Row, name)
        stored = row.password_hash if row else None
        try:
            self._hasher.verify(stored or self._nobody, passwords.folded(password))
        except (VerificationError, InvalidHashError):
            raise _wrong() from None
        if row is None or stored is None:
            raise _wrong()
        if self._hasher.check_needs_rehash(stored):
            self._store(name, stored, self._hash(password))
        return _account(row, None)

    def change(self, name: str, old: str, new: str, again: str, now: float) -> Account:
        """Set another password, for who knows the present one.

        Raises:
            WrongPassword: The present password is another.
            PasswordRefused: The new one breaks a rule.
        """
        account = self.check(name, old)
        passwords.accept(new, again, name, self.min_length)
        hashed = self._hash(new)
        with writing(self._engine) as connection:
            connection.execute(
                update(Row).where(Row.name == name).values(password_hash=hashed, password_set_at=now)
            )
        return account

    def warm_up(self) -> None:
        """Make ahead what the first name without an account would otherwise wait for, and show by waiting."""
        _ = self._nobody

    @cached_property
    def _nobody(self) -> str:
        """A hash that no password has, for names without an account."""
        return self._hasher.hash(secrets.token_bytes(32))

    def _hash(self, password: str) -> str:
        return self._hasher.hash(passwords.folded(password))

    def _store(self, name: str, old_hash: str, new_hash: str) -> None:
        # Only over the hash that was checked: a password changed meanwhile must not come back.
        with writing(self._engine) as connection:
            connection.execute(
                update(Row)
                .where(Row.name == name, Row.password_hash == old_hash)
                .values(password_hash=new_hash)
            )


def _issue(session: Session, name: str, now: float, expires_at: float) -> Invitation:
    secret = secrets.token_urlsafe(32)
    session.add(Invite(account=name, secret_hash=_digest(secret), created_at=now, expires_at=expires_at))
    session.flush()
    return Invitation(name, secret, expires_at)


def _opened(session: Session, secret: str, now: float) -> Row:
    invite = session.scalar(select(Invite).where(Invite.secret_hash == _digest(secret)))
    row = session.get(Row, invite.account) if invite else None
    if invite is None or row is None:
        raise _refusal("unknown")
    if invite.closed_at is not None:
        raise _refusal(invite.outcome or "used")
    if invite.expires_at <= now:
        raise _refusal("expired")
    return row


def _refusal(cause: str) -> InviteRefused:
    message, next_step = {
        "unknown": ("This invitation is not one of this lab's.", f"Check that the link is whole. {_ASK}"),
        "expired": ("This invitation has expired.", _ASK),
        "used": (
            "This invitation was already used.",
            "Sign in with the password that was set with it. If somebody else did, tell an admin of the lab.",
        ),
        "replaced": (
            "This invitation was replaced by a newer one.",
            "Use the newest link that you were sent, or ask an admin of the lab for another.",
        ),
    }[cause]
    return InviteRefused(message, next_step=next_step, details={"cause": cause})


def _account(row: Row, invite_expires_at: float | None) -> Account:
    return Account(row.name, row.admin, row.created_at, row.password_set_at, invite_expires_at)


def _digest(secret: str) -> bytes:
    return sha256(secret.encode("utf-8", "surrogatepass")).digest()


def _missing(name: str) -> AccountMissing:
    return AccountMissing(
        f"There is no account {names.shown(name)}.", next_step="`gpulab user list` shows those there are."
    )


def _wrong() -> WrongPassword:
    return WrongPassword("The name or the password is not right.")
