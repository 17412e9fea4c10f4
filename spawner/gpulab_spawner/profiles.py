"""The catalogue of the spawn page, read from KubeSpawner's profile_list schema.

An entry:

    - display_name: PyTorch
      slug: pytorch                  # from display_name if absent
      description: CUDA 12.6, torch 2.7
      default: true
      gpu: [none, "gpu:1", mig, memory]
      kubespawner_override:
        image: gpulab/pytorch:2.7
        mem_limit: 16G
        mem_guarantee: 8G
        cpu_limit: 4
        shm_size: 8G
        environment: {TF_CPP_MIN_LOG_LEVEL: "2"}

`gpu` lists the shapes that the profile offers (`gpulab_spawner.placement.request`), plus two that stand for
many: `mig`, one slice of any MIG profile that the machine has, and `memory`, at least as many GiB as the user
says.
A key that has no meaning here is refused by its name: a profile that silently loses a key would start
something else than its author wrote. The values of an entry that are absent are the site's (`Defaults`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpulab_spawner.errors import BadOptions, ConfigError
from gpulab_spawner.placement.request import AtLeast, NoGpu, Shape, Slice, parse_shape
from gpulab_spawner.reference import parse_reference
from gpulab_spawner.sizes import parse_limit

ANY_SLICE = "mig"
ANY_MEMORY = "memory"
_KEYS = {"display_name", "slug", "description", "default", "gpu", "kubespawner_override"}
_OVERRIDES = {"image", "mem_limit", "mem_guarantee", "cpu_limit", "shm_size", "environment"}
_ELSEWHERE = {
    "profile_options": "write one profile for each choice; users pick profiles, never images",
    "unlisted_choice": "users pick profiles, never images",
    "allowed_groups": "who may use a profile is a quota, not a key of the profile",
}
_RESERVED_ENV = re.compile(
    r"NVIDIA_.*|CUDA_VISIBLE_DEVICES|CUDA_DEVICE_ORDER|LD_PRELOAD|LD_LIBRARY_PATH|JUPYTERHUB_.*|GPULAB_.*"
)


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a profile gets where it says nothing.

    Attributes:
        image: Image reference.
        memory_bytes: Memory limit of the container.
        guarantee_bytes: Host memory counted at admission, None for the whole limit.
        cpus: CPU limit in cores.
        shm_bytes: Size of /dev/shm, None for half of the memory limit and 8 GiB at most.
        environment: Variables of every server.
    """

    image: str
    memory_bytes: int
    guarantee_bytes: int | None = None
    cpus: float = 2.0
    shm_bytes: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Profile:
    """One entry of the spawn page.

    Attributes:
        slug: Its name in options and the ledger.
        display_name: Its name on the page.
        description: One or two lines for the page; plain text.
        default: Whether it is chosen when nothing is.
        image: Image reference that its servers start.
        shapes: Shapes offered by name, in the order of the catalogue.
        any_slice: Whether every MIG profile of the machine is offered.
        any_memory: Whether "at least X GiB" is offered.
        memory_bytes: Memory limit of the container.
        guarantee_bytes: Host memory counted at admission.
        cpus: CPU limit in cores.
        shm_bytes: Size of /dev/shm.
        environment: Variables of its servers.
    """

    slug: str
    display_name: str
    description: str
    default: bool
    image: str
    shapes: tuple[Shape, ...]
    any_slice: bool
    any_memory: bool
    memory_bytes: int
    guarantee_bytes: int
    cpus: float
    shm_bytes: int
    environment: Mapping[str, str]

    def offers(self, shape: Shape) -> bool:
        """Return whether a user may ask for that shape here."""
        if isinstance(shape, Slice) and self.any_slice:
            return True
        if isinstance(shape, AtLeast) and self.any_memory:
            return True
        return shape in self.shapes

    def first_shape(self) -> Shape | None:
        """Return the shape that an empty request gets: none where it is offered, else the first by name.

        A profile that offers only slices or memory has no such shape: its users must say which.
        """
        if NoGpu() in self.shapes:
            return NoGpu()
        return self.shapes[0] if self.shapes else None


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The profiles of a lab, in the order of the page; at least one."""

    profiles: tuple[Profile, ...]

    @property
    def default(self) -> Profile:
        """The profile that an empty request gets."""
        return next((p for p in self.profiles if p.default), self.profiles[0])

    def get(self, slug: str) -> Profile:
        """Return the profile of a slug.

        Raises:
            BadOptions: There is none; the message lists those there are.
        """
        for profile in self.profiles:
            if profile.slug == slug:
                return profile
        raise BadOptions(
            f"There is no environment {slug[:60]!r}.",
            next_step="Choose one of: " + ", ".join(p.slug for p in self.profiles) + ".",
            details={"profile": slug[:60]},
        )


def read_profiles(entries: Iterable[object], defaults: Defaults) -> Catalogue:
    """Return the catalogue of a profile list; an empty list gives one plain profile.

    Raises:
        ConfigError: An entry is wrong; the error names the entry and its key. Or servers.environment is.
    """
    _environment("servers", {"environment": defaults.environment})
    profiles = [_read(number, entry, defaults) for number, entry in enumerate(entries)]
    if not profiles:
        plain = {"display_name": "Python", "gpu": ["none", "gpu:1", ANY_SLICE, ANY_MEMORY], "default": True}
        profiles = [_read(0, plain, defaults)]
    slugs = [p.slug for p in profiles]
    for number, slug in enumerate(slugs):
        if slug in slugs[:number]:
            raise ConfigError(f"profiles.{number}.slug", f"{slug!r} names an earlier profile already")
    if sum(p.default for p in profiles) > 1:
        raise ConfigError(
            "profiles", "more than one profile is the default", next_step="Keep one default: true."
        )
    return Catalogue(tuple(profiles))


def _read(number: int, entry: object, defaults: Defaults) -> Profile:
    where = f"profiles.{number}"
    if not isinstance(entry, Mapping):
        raise ConfigError(
            where, f"{entry!r} is not a profile", next_step="A profile is a mapping with display_name."
        )
    _known(where, entry, _KEYS)
    name = _text(where, entry, "display_name", None)
    override = entry.get("kubespawner_override") or {}
    if not isinstance(override, Mapping):
        raise ConfigError(f"{where}.kubespawner_override", f"{override!r} is not a mapping")
    inner = f"{where}.kubespawner_override"
    _known(inner, override, _OVERRIDES)
    shapes, any_slice, any_memory = _shapes(f"{where}.gpu", entry.get("gpu", ["none"]))
    memory = _size(inner, override, "mem_limit", defaults.memory_bytes)
    fallback = min(defaults.guarantee_bytes or memory, memory)
    guarantee = _size(inner, override, "mem_guarantee", fallback)
    if guarantee > memory:
        raise ConfigError(f"{inner}.mem_guarantee", "it is above mem_limit")
    return Profile(
        slug=_slug(where, entry, name),
        display_name=name,
        description=_text(where, entry, "description", ""),
        default=_flag(where, entry),
        image=_image(inner, override, defaults.image),
        shapes=shapes,
        any_slice=any_slice,
        any_memory=any_memory,
        memory_bytes=memory,
        guarantee_bytes=guarantee,
        cpus=_cpus(inner, override, defaults.cpus),
        shm_bytes=_size(inner, override, "shm_size", defaults.shm_bytes or min(memory // 2, 8 * 2**30)),
        environment={**defaults.environment, **_environment(inner, override)},
    )


def _known(where: str, entry: Mapping[object, object], known: set[str]) -> None:
    for key in entry:
        if key not in known:
            raise ConfigError(
                f"{where}.{key}",
                "this key has no meaning here",
                next_step=(_ELSEWHERE.get(str(key), "Known keys: " + ", ".join(sorted(known))) + "."),
            )


def _text(where: str, entry: Mapping[str, object], key: str, default: str | None) -> str:
    value = entry.get(key, default)
    if not isinstance(value, str) or (default is None and not value.strip()):
        raise ConfigError(f"{where}.{key}", f"{value!r} is not a text")
    return value.strip()


def _image(where: str, entry: Mapping[str, object], default: str) -> str:
    image = _text(where, entry, "image", default)
    # Docker's word for a reference that is none comes at a start, and to its user.
    return str(parse_reference(image, f"{where}.image")) if "image" in entry else image


def _flag(where: str, entry: Mapping[str, object]) -> bool:
    value = entry.get("default", False)
    if not isinstance(value, bool):
        raise ConfigError(f"{where}.default", f"{value!r} is not true or false")
    return value


def _slug(where: str, entry: Mapping[str, object], name: str) -> str:
    slug = entry.get("slug") or re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    if not isinstance(slug, str) or not re.fullmatch(r"[a-z0-9](?:[a-z0-9.-]{0,61}[a-z0-9])?", slug):
        raise ConfigError(
            f"{where}.slug",
            f"{slug!r} is not a slug",
            next_step="Use up to 63 lower-case letters, digits, dots and dashes.",
        )
    return slug


def _shapes(where: str, value: object) -> tuple[tuple[Shape, ...], bool, bool]:
    if not isinstance(value, list | tuple) or not value:
        raise ConfigError(
            where, f"{value!r} is not a list of shapes", next_step='Write e.g. [none, "gpu:1", mig].'
        )
    named: list[Shape] = []
    for item in value:
        if item in (ANY_SLICE, ANY_MEMORY):
            continue
        try:
            shape = parse_shape(item if isinstance(item, str) else repr(item))
        except BadOptions as error:
            raise ConfigError(
                where, error.message, next_step=error.next_step + " Or mig, or memory."
            ) from error
        if shape not in named:
            named.append(shape)
    return tuple(named), ANY_SLICE in value, ANY_MEMORY in value


def _size(where: str, entry: Mapping[str, object], key: str, default: int) -> int:
    try:
        return parse_limit(entry.get(key, default))
    except ValueError as error:
        raise ConfigError(f"{where}.{key}", str(error)) from error


def _cpus(where: str, entry: Mapping[str, object], default: float) -> float:
    value = entry.get("cpu_limit", default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.01 <= value <= 4096:
        raise ConfigError(f"{where}.cpu_limit", f"{value!r} is not a number of cores from 0.01 to 4096")
    return float(value)


def _environment(where: str, entry: Mapping[str, object]) -> dict[str, str]:
    value = entry.get("environment") or {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}.environment", f"{value!r} is not a mapping")
    for name, text in value.items():
        key = f"{where}.environment.{name}"
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise ConfigError(key, "it is not the name of a variable")
        if _RESERVED_ENV.fullmatch(name):
            raise ConfigError(
                key, "the lab sets this variable itself, or keeps it unset, so that the grant holds"
            )
        if not isinstance(text, str):
            raise ConfigError(key, f"{text!r} is not a text", next_step="Quote it.")
    return dict(value)
