"""Every error the lab raises on purpose.

The tree:

    LabError
      ConfigError            a setting is wrong: key, value and what is accepted
      Refusal                a request that a user may make was declined
        BadOptions           the options do not fit the closed schema
        NotOffered           the profile or the shape is not offered to this user
        OverLimit            a limit of this user does not allow it
        NoCapacity           every device that would fit is taken, withheld or absent
        InventoryStale       the newest snapshot of the GPUs is too old to grant from
        GpusOff              this machine has no usable GPU: CPU servers go on
        DeviceVanished       a granted device is no longer there
        HostMemoryShort      host memory is promised to others already
        HostDiskShort        the storage is below its reserve
        StorageUnavailable   the storage root is missing or not ours to use
        ImageMissing         the profile's image is not on this machine
        NameHeld             another container holds the name that we need
        EngineUnavailable    Docker does not answer, or answers 5xx
        StartFailed          the container was made but did not come up
        LeaseConflict        a lease changed under us: a second start of the same server
        LedgerUnavailable    the lab's database does not answer
        LimitRefused         a limit that cannot be set so
        NameRefused          a user name that the lab does not carry
        AccountExists        a local account of that name is there already
        AccountMissing       there is no local account of that name
        InviteRefused        an invitation link opens nothing: unknown, expired, used or replaced
        PasswordRefused      a new password that breaks a rule
        WrongPassword        the name or the password is not right
        TooManyAttempts      too many wrong passwords from one place

A refusal is worded for the person who meets it: what was refused and by how much (message), and what to do
about it (next_step). The code is stable: it labels metrics and scripts may rely on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar


class LabError(Exception):
    """An error with a stable code, a message and a next step.

    Args:
        message: One sentence: what is wrong, where, with the figure.
        next_step: One sentence: what the reader can do about it.
        details: Machine-readable facts behind the message; JSON types only.
    """

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500

    def __init__(
        self, message: str, *, next_step: str = "", details: Mapping[str, object] | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step
        self.details = dict(details or {})

    def __str__(self) -> str:
        return f"{self.message} {self.next_step}".strip()

    def sentence(self) -> str:
        """Return message, next step and code as one line, for places that carry a single string."""
        return f"{self} [{self.code}]"

    def as_json(self) -> dict[str, object]:
        """Return the one error shape of every API of the lab."""
        return {
            "error": {
                "code": self.code,
                "message": self.message,
                "next_step": self.next_step,
                "details": self.details,
            }
        }


class ConfigError(LabError):
    """A setting is wrong.

    Args:
        key: Dotted path of the setting, such as `storage.uid_base`.
        problem: What is wrong with it, naming the value.
        next_step: What is accepted instead.
        source: File that the setting came from.
    """

    code = "config"

    def __init__(self, key: str, problem: str, *, next_step: str = "", source: str = "") -> None:
        where = f"{source}: {key}" if source else key
        end = "" if problem.endswith((".", "?", "!")) else "."
        super().__init__(f"{where}: {problem}{end}", next_step=next_step, details={"key": key})
        self.key = key


class Refusal(LabError):
    """A request was declined; nothing was granted and nothing was lost."""

    code = "refused"
    status = 400


class BadOptions(Refusal):
    """The options do not fit the closed schema."""

    code = "bad_options"


class NotOffered(Refusal):
    """The profile or the shape is not offered to this user."""

    code = "not_offered"
    status = 403


class OverLimit(Refusal):
    """A limit of this user does not allow it; `details["limit"]` names it."""

    code = "over_limit"
    status = 403


class NoCapacity(Refusal):
    """Every device that would fit is taken, withheld or absent."""

    code = "no_capacity"
    status = 409


class InventoryStale(Refusal):
    """The newest snapshot of the GPUs is too old to grant from."""

    code = "inventory_stale"
    status = 503


class GpusOff(Refusal):
    """This machine has no usable GPU; servers without GPUs go on."""

    code = "gpus_off"
    status = 503


class DeviceVanished(Refusal):
    """A granted device is no longer there."""

    code = "device_vanished"
    status = 409


class HostMemoryShort(Refusal):
    """The host memory that the server asks for is promised to others already."""

    code = "host_memory"
    status = 409


class HostDiskShort(Refusal):
    """The storage has less free space than its reserve."""

    code = "host_disk"
    status = 507


class StorageUnavailable(Refusal):
    """The storage root is missing, or holds something that is not ours to use."""

    code = "storage"
    status = 503


class ImageMissing(Refusal):
    """The profile's image is not on this machine."""

    code = "image_missing"
    status = 503


class NameHeld(Refusal):
    """Another container holds the name that we need."""

    code = "name_held"
    status = 409


class EngineUnavailable(Refusal):
    """Docker does not answer, or answers with a fault of its own."""

    code = "engine_unavailable"
    status = 503


class StartFailed(Refusal):
    """The container was made but did not come up."""

    code = "start_failed"
    status = 500


class LeaseConflict(Refusal):
    """The server already has a lease, or the lease changed under us."""

    code = "lease_conflict"
    status = 409


class LedgerUnavailable(Refusal):
    """The lab's database does not answer."""

    code = "ledger_unavailable"
    status = 503


class LimitRefused(Refusal):
    """A limit that cannot be set so."""

    code = "limit"


class NameRefused(Refusal):
    """A user name that the lab does not carry."""

    code = "name"


class AccountExists(Refusal):
    """A local account of that name is there already."""

    code = "account_exists"
    status = 409


class AccountMissing(Refusal):
    """There is no local account of that name."""

    code = "account_missing"
    status = 404


class InviteRefused(Refusal):
    """An invitation link opens nothing; `details["cause"]` is unknown, expired, used or replaced."""

    code = "invite"
    status = 410


class PasswordRefused(Refusal):
    """A new password breaks a rule."""

    code = "password"


class WrongPassword(Refusal):
    """The name or the password is not right; which of the two is never said."""

    code = "wrong_password"
    status = 403


class TooManyAttempts(Refusal):
    """Too many wrong passwords came from one place; `details["seconds"]` is how long to wait."""

    code = "too_many_attempts"
    status = 429
