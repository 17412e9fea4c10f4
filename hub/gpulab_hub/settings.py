"""gpulab.yaml as typed settings.

The file is one mapping of sections. Unknown keys, wrong types and impossible values are errors that name the
file, the key and what is accepted; nothing is guessed. Every setting is described in config/gpulab.yaml, and
a test holds the two together.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from gpulab_spawner.errors import ConfigError

_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def parse_bytes(value: object) -> int:
    """Return bytes for an integer or a text such as `8G` (powers of 1024: K, M, G, T).

    Raises:
        ValueError: It is neither, or not positive.
    """
    if isinstance(value, str):
        number, unit = (value[:-1], _UNITS[value[-1]]) if value[-1:] in _UNITS else (value, 1)
        try:
            value = float(number) * unit
        except ValueError:
            raise ValueError(f"{value!r} is not a size; write bytes or a number with K, M, G or T") from None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**62:
        raise ValueError(f"{value!r} is not a size; write bytes or a number with K, M, G or T")
    return int(value)


Bytes = Annotated[int, BeforeValidator(parse_bytes)]


class Section(BaseModel):
    """A section of gpulab.yaml: closed and immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _all_commented_out(cls, value: object) -> object:
        """A section whose lines are all comments is an empty one."""
        return {} if value is None else value


class Listen(Section):
    """Where people reach the lab."""

    address: str = "127.0.0.1"
    port: int = Field(default=8000, ge=1, le=65535)
    public_url: str | None = None
    """URL that people type, if it is not http://address:port (a TLS proxy in front)."""


class Engine(Section):
    """The Docker Engine that holds the users' containers."""

    url: str | None = None
    """Docker socket, as in DOCKER_HOST; None takes the environment's, then /var/run/docker.sock."""
    injection: Literal["auto", "cdi", "devices", "nvidia"] = "auto"
    network: str | None = None
    """Name of the bridge network of the servers; None makes one named after this lab."""
    driver_files: str | None = None
    """Directory of the NVIDIA driver's files on a host that keeps them apart from the system's libraries."""
    timeout_seconds: int = Field(default=60, ge=1)


class SharedDirectory(Section):
    """A directory that several people see at /data/NAME."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,30}$")
    path: str
    groups: tuple[str, ...] = ()
    """Hub groups that see it; empty means everyone."""
    writers: tuple[str, ...] = ()
    """Hub groups that may write; everyone else reads."""


class Storage(Section):
    """Where homes live."""

    root: str | None = None
    """Storage root; None takes DIR/storage of the state directory."""
    uid_base: int = Field(default=200_000, ge=1000, le=2**31 - 2**20)
    reserve: Bytes = 2 * 2**30
    """Free space below which new servers are refused."""
    shared: tuple[SharedDirectory, ...] = ()


class Host(Section):
    """What of the host is kept for itself."""

    memory_reserve: Bytes = 2 * 2**30
    snapshot_max_age_seconds: float = Field(default=15.0, gt=0)


class Servers(Section):
    """Defaults of every server; a profile may override the limits."""

    memory: Bytes = 4 * 2**30
    memory_guarantee: Bytes | None = None
    """Host memory counted at admission; None counts the whole limit."""
    cpus: float = Field(default=2.0, gt=0)
    pids: int = Field(default=4096, ge=64)
    shm: Bytes | None = None
    """Size of /dev/shm; None takes half of the memory limit, 8 GiB at most."""
    named: int = Field(default=3, ge=0)
    """Named servers a person may have besides the default one."""
    quarantine_hours: float | None = Field(default=None, gt=0)
    """Hours after which a server without a lease is ended; None leaves that to an admin."""
    start_timeout_seconds: int = Field(default=120, ge=5)
    environment: dict[str, str] = {}


class LocalAccounts(Section):
    """Accounts that only an invite opens."""

    enabled: bool = True
    invite_days: float = Field(default=7.0, gt=0, le=365)
    password_min_length: int = Field(default=10, ge=8, le=128)


class Auth(Section):
    """Sign-in."""

    local: LocalAccounts = LocalAccounts()


class Settings(Section):
    """All of gpulab.yaml."""

    name: str = Field(default="GPU Lab", min_length=1, max_length=60)
    listen: Listen = Listen()
    engine: Engine = Engine()
    storage: Storage = Storage()
    host: Host = Host()
    servers: Servers = Servers()
    auth: Auth = Auth()
    database_url: str | None = None
    """SQLAlchemy URL of the lab's own database; None takes SQLite in the state directory."""
    profiles: tuple[dict[str, Any], ...] = ()
    """The spawn page's entries in KubeSpawner's profile_list schema, read by gpulab_spawner.profiles."""


def parse(text: str, source: str = "gpulab.yaml") -> Settings:
    """Return the settings in a YAML text.

    Raises:
        ConfigError: The first thing that is wrong: file, key, value, what is accepted.
    """
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "the file"
        problem = getattr(error, "problem", None) or "it is not YAML"
        raise ConfigError(line, str(problem), source=source, next_step="Fix the YAML there.") from error
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise ConfigError(
            "the file",
            f"it holds a {type(data).__name__}, not sections",
            source=source,
            next_step="See config/.",
        )
    try:
        return Settings.model_validate(_tuples(data))
    except ValidationError as error:
        raise _explain(error, source) from error


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


def _tuples(value: object) -> object:
    """Lists to tuples, which is what frozen sections hold; profiles keep their lists."""
    if isinstance(value, dict):
        return {
            k: (tuple(v) if k == "profiles" and isinstance(v, list) else _tuples(v)) for k, v in value.items()
        }
    if isinstance(value, list):
        return tuple(_tuples(v) for v in value)
    return value


def _explain(error: ValidationError, source: str) -> ConfigError:
    # An unknown key first: a misspelt one also makes its right spelling "missing".
    first = min(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
    key = ".".join(str(part) for part in first["loc"]) or "the file"
    if first["type"] == "extra_forbidden":
        section = _section(first["loc"][:-1])
        known = ", ".join(sorted(section.model_fields)) if section else ""
        return ConfigError(key, "there is no such setting", source=source, next_step=f"Known here: {known}.")
    problem = first["msg"].removeprefix("Value error, ")
    return ConfigError(key, f"{first.get('input')!r} is not accepted: {problem}", source=source)


def _section(loc: tuple[int | str, ...]) -> type[BaseModel] | None:
    model: type[BaseModel] = Settings
    for part in loc:
        field = model.model_fields.get(str(part))
        if field is None:
            return model if isinstance(part, int) else None
        annotation = field.annotation
        if part == "shared":
            model = SharedDirectory
        elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
            model = annotation
    return model
