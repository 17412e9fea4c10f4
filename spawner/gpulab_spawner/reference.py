"""References of images: `[registry[:port]/]repository[:tag][@digest]`.

Splitting such a text at its colons goes wrong in two known ways: a registry's port is taken for a tag, and
the digest of `name@sha256:...` is sent as a tag. A reference that is pinned by its digest is the one we
recommend, so this module parses the grammar of the distribution project's `reference` package instead.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpulab_spawner.errors import ConfigError

_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_REGISTRY = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9a-fA-F:]+\])(?::[0-9]{{1,5}})?")
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT})*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")
_LONGEST_NAME = 255
_EXAMPLE = "Write it like gpulab/base:1.0 or registry.example:5000/team/image@sha256:...."


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference, in its parts as they were written.

    Attributes:
        registry: Host and port, "" where none is named (the engine's default then).
        repository: Path of the repository, without the registry.
        tag: Tag, None where none is written.
        digest: Digest with its algorithm, None where none is written.
    """

    registry: str
    repository: str
    tag: str | None = None
    digest: str | None = None

    @property
    def name(self) -> str:
        """Registry and repository, without tag and digest."""
        return f"{self.registry}/{self.repository}" if self.registry else self.repository

    @property
    def pinned(self) -> bool:
        """Whether it names one image for ever."""
        return self.digest is not None

    def pull_arguments(self) -> tuple[str, str]:
        """Return `fromImage` and `tag` of the engine's POST /images/create.

        A digest goes where the tag goes, whole, and wins over a tag, as in `docker pull`. Without either the
        tag is `latest`: an empty one would pull every tag there is.
        """
        return self.name, self.digest or self.tag or "latest"

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        digest = f"@{self.digest}" if self.digest else ""
        return f"{self.name}{tag}{digest}"


def parse_reference(text: str, key: str = "image") -> Reference:
    """Return the parts of a reference.

    Args:
        text: The reference as somebody wrote it.
        key: Setting that it came from, for the error.

    Raises:
        ConfigError: It is no reference; the message says which part is not.
    """
    rest, at, digest = text.partition("@")
    if at and not _DIGEST.fullmatch(digest):
        raise _wrong(key, text, f"{digest!r} is no digest: sha256: and 64 hexadecimal digits")
    # A colon is a tag's only after the last slash; before it, it is a port's.
    slash = rest.rfind("/")
    colon = rest.find(":", slash + 1)
    name, tag = (rest[:colon], rest[colon + 1 :]) if colon >= 0 else (rest, None)
    if tag is not None and not _TAG.fullmatch(tag):
        raise _wrong(key, text, f"{tag!r} is no tag")
    first, slashed, path = name.partition("/")
    # Docker's rule: the first part is a registry if it looks like a host, else somebody's name.
    registry = first if slashed and (re.search(r"[.:A-Z]", first) or first == "localhost") else ""
    repository = path if registry else name
    if registry and not _REGISTRY.fullmatch(registry):
        raise _wrong(key, text, f"{registry!r} is no registry")
    if not _REPOSITORY.fullmatch(repository):
        raise _wrong(
            key,
            text,
            f"{repository!r} is no repository: lower-case letters, digits, and single . _ - between",
        )
    if len(name) > _LONGEST_NAME:
        raise _wrong(
            key, text[:40] + "...", f"its name has {len(name)} characters, more than {_LONGEST_NAME}"
        )
    return Reference(registry, repository, tag, digest or None)


def _wrong(key: str, text: str, problem: str) -> ConfigError:
    return ConfigError(key, f"{text!r} is no image reference: {problem}", next_step=_EXAMPLE)
