"""gpulab.yaml as typed settings.

The file is one mapping of sections. Unknown keys, wrong types and impossible values are errors that name the
file, the key and what is accepted; nothing is guessed. Every setting is described in config/gpulab.yaml, and
a test holds the two together.
"""

from __future__ import annotations

import posixpath
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from gpulab_hub.accounting.limits import read_rules
from gpulab_hub.documents import read_document
from gpulab_spawner.errors import ConfigError
from gpulab_spawner.sizes import parse_limit, parse_size

Bytes = Annotated[int, BeforeValidator(parse_size)]
Limit = Annotated[int, BeforeValidator(parse_limit)]


def _absolute(path: str) -> str:
    if not path.startswith("/") or posixpath.normpath(path) != path or path == "/":
        raise ValueError(f"{path!r} is not the absolute path of a directory below /, without dots in it")
    return path


Directory = Annotated[str, AfterValidator(_absolute)]


def _web_address(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/"):
        raise ValueError(f"{url!r} is not a web address; write https://NAME, with nothing after it")
    return url


def _zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ValueError, OSError, ZoneInfoNotFoundError) as error:
        raise ValueError(
            f"this machine does not know the time zone {name!r}; write one like Europe/Berlin"
        ) from error
    return name


def _limits(text: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    read_rules(text)
    return text


class Section(BaseModel):
    """A section of gpulab.yaml: closed and immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _all_commented_out(cls, value: object) -> object:
        """A section whose lines are all comments is an empty one."""
        return {} if value is None else value


class Listen(Section):
    """Where people reach the lab."""

    address: str = "127.0.0.1"
    port: int = Field(default=8000, ge=1, le=65535)
    public_url: Annotated[str, AfterValidator(_web_address)] | None = None
    """URL that people type, if it is not http://address:port (a TLS proxy in front)."""


class Engine(Section):
    """The Docker Engine that holds the users' containers."""

    url: str | None = None
    """Docker socket, as in DOCKER_HOST; None takes the environment's, then /var/run/docker.sock."""
    injection: Literal["auto", "cdi", "devices", "nvidia"] = "auto"
    network: str | None = None
    """Name of the bridge network of the servers; None makes one named after this lab."""
    driver_files: Directory | None = None
    """Directory of the NVIDIA driver's files on a host that keeps them apart from the system's libraries."""
    timeout_seconds: int = Field(default=60, ge=1)
    pull: bool = False
    """Whether a profile's image that is not on the machine is pulled when somebody wants to start it."""
    pull_minutes: float = Field(default=60.0, gt=0)
    """How long a pull may take; a start waits for it no longer than a start may take."""


class SharedDirectory(Section):
    """A directory that several people see at /data/NAME."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,30}$")
    path: Directory
    groups: tuple[str, ...] = ()
    """Hub groups that see it; empty means everyone."""
    writers: tuple[str, ...] = ()
    """Hub groups that may write; everyone else reads."""


class Storage(Section):
    """Where homes live."""

    root: Directory | None = None
    """Storage root; None takes DIR/storage of the state directory."""
    uid_base: int = Field(default=200_000, ge=1000, le=2**31 - 2**20)
    reserve: Bytes = 2 * 2**30
    """Free space below which new servers are refused."""
    shared: tuple[SharedDirectory, ...] = ()

    @field_validator("shared")
    @classmethod
    def _names_differ(cls, shared: tuple[SharedDirectory, ...]) -> tuple[SharedDirectory, ...]:
        names = [each.name for each in shared]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two directories are named {name!r}")
        return shared


class Host(Section):
    """What of the host is kept for itself."""

    memory_reserve: Bytes = 2 * 2**30
    snapshot_max_age_seconds: float = Field(default=15.0, gt=0)


class Servers(Section):
    """Defaults of every server; a profile may override the limits."""

    memory: Limit = 4 * 2**30
    memory_guarantee: Limit | None = None
    """Host memory counted at admission; None counts the whole limit."""
    cpus: float = Field(default=2.0, ge=0.01, le=4096)
    pids: int = Field(default=4096, ge=64)
    shm: Limit | None = None
    """Size of /dev/shm; None takes half of the memory limit, 8 GiB at most."""
    named: int = Field(default=3, ge=0)
    """Named servers a person may have besides the default one."""
    quarantine_hours: float | None = Field(default=None, gt=0)
    """Hours after which a server without a lease is ended; None leaves that to an admin."""
    start_timeout_seconds: int = Field(default=120, ge=5)
    environment: dict[str, str] = {}

    @model_validator(mode="after")
    def _promise_within_limit(self) -> Self:
        if self.memory_guarantee is not None and self.memory_guarantee > self.memory:
            raise ValueError("memory_guarantee is above memory")
        return self


class Health(Section):
    """When the lab takes a GPU out of service, and when it speaks."""

    cordon_xids: tuple[int, ...] = ()
    """XIDs that are cordoned, whatever NVIDIA's catalogue says."""
    ignore_xids: tuple[int, ...] = ()
    """XIDs that are written down and nothing else."""
    cordon_pending_remap: bool = False
    problem_seconds: float = Field(default=15.0, ge=0)
    unsteady_times: int = Field(default=3, ge=1, le=20)
    throttle_minutes: float = Field(default=10.0, gt=0)
    repeat_minutes: float = Field(default=60.0, gt=0)
    owner_minutes: float = Field(default=60.0, gt=0)
    notice_days: float = Field(default=7.0, gt=0)
    keep_events: int = Field(default=10_000, ge=100)
    keep_days: float = Field(default=730.0, gt=0)
    probe_seconds: float | None = Field(default=60.0, ge=10)
    """How often a server is asked whether it still reaches its GPU; None for never."""


class LocalAccounts(Section):
    """Accounts that only an invite opens."""

    invite_days: float = Field(default=7.0, gt=0, le=365)
    password_min_length: int = Field(default=10, ge=8, le=128)


class Auth(Section):
    """Sign-in."""

    local: LocalAccounts = LocalAccounts()


class PrivacyPolicy(Section):
    """What people may know of each other (`gpulab_hub.visible`)."""

    holders: Literal["name", "group", "in_use"] = "name"
    """What others see of who holds a device. Admins see names always."""


class Settings(Section):
    """All of gpulab.yaml."""

    name: str = Field(default="GPU Lab", min_length=1, max_length=60)
    listen: Listen = Listen()
    engine: Engine = Engine()
    storage: Storage = Storage()
    host: Host = Host()
    servers: Servers = Servers()
    auth: Auth = Auth()
    health: Health = Health()
    privacy: PrivacyPolicy = PrivacyPolicy()
    limits: Annotated[dict[str, dict[str, Any]], AfterValidator(_limits)] = {}
    """First limits of the lab, by scope (`gpulab_hub.accounting.limits`); the database then holds them."""
    time_zone: Annotated[str, AfterValidator(_zone)] | None = None
    """Time zone whose days and times reports mean; None takes the machine's."""
    database_url: str | None = None
    """SQLAlchemy URL of the lab's own database; None takes SQLite in the state directory."""
    profiles: tuple[dict[str, Any], ...] = ()
    """The spawn page's entries in KubeSpawner's profile_list schema, read by gpulab_spawner.profiles."""


def parse(text: str, source: str = "gpulab.yaml") -> Settings:
    """Return the settings in a YAML text.

    Raises:
        ConfigError: The first thing that is wrong: file, key, value, what is accepted.
    """
    return read_document(
        text, Settings, source=source, holds="sections", a_key="setting", as_lists=frozenset({"profiles"})
    )


def load(path: Path) -> Settings:
    """Return the settings in a file; a missing file is an error.

    Raises:
        ConfigError: It cannot be read, or something in it is wrong.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            str(path), f"it cannot be read: {error}", next_step="Run deploy/up to make one."
        ) from error
    return parse(text, str(path))


def require_apart(settings: Settings, state: Path) -> None:
    """Check that no shared directory lies within another, or within what is the lab's, or around either.

    Whoever may write to the outer one could put a link in the place of the inner one, and Docker would mount
    what the link names.

    Args:
        settings: The settings.
        state: The lab's state directory.

    Raises:
        ConfigError: One does.
    """
    taken = {str(state): "the lab's state directory"}
    if settings.storage.root:
        taken[settings.storage.root] = "storage.root"
    for number, shared in enumerate(settings.storage.shared):
        path = PurePosixPath(shared.path)
        for other, what in taken.items():
            if path.is_relative_to(other) or PurePosixPath(other).is_relative_to(path):
                raise ConfigError(
                    f"storage.shared.{number}.path",
                    f"{shared.path} and {what} ({other}) lie one within the other",
                    next_step="Share directories that lie beside each other.",
                )
        taken[shared.path] = f"the path of {shared.name}"
