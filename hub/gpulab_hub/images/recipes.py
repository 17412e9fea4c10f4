"""Recipes of images: where they lie, and what of them a build sends to the engine."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpulab_spawner.errors import ConfigError

HERE = Path(__file__).parent
SKIPPED = frozenset({"__pycache__", "README.md", ".gitignore"})


@dataclass(frozen=True, slots=True)
class ContextFile:
    """A file of a build's context.

    Attributes:
        content: Its bytes.
        executable: Whether its mode has the executable bits; nothing else of a mode is kept.
    """

    content: bytes
    executable: bool = False


Context = Mapping[str, ContextFile]
"""Relative path, with `/`, to file."""


def recipes_directory(here: Path = HERE) -> Path:
    """Return the directory that holds one directory for each image.

    In a checkout that is `images/` at its top; in an installed wheel `recipes/` beside this module.
    """
    checkout = here.parents[2] / "images"
    return checkout if checkout.is_dir() else here / "recipes"


def recipe_names(directory: Path) -> list[str]:
    """Return the names of the images that there are recipes for."""
    return sorted(path.parent.name for path in directory.glob("*/Dockerfile"))


def read_recipe(name: str, directory: Path) -> Context:
    """Return the files of a recipe.

    Raises:
        ConfigError: There is no such recipe.
    """
    known = recipe_names(directory)
    if name not in known:
        raise ConfigError("image", f"there is no recipe {name!r}", next_step=f"Known: {', '.join(known)}.")
    top = directory / name
    return {
        path.relative_to(top).as_posix(): ContextFile(path.read_bytes(), bool(path.stat().st_mode & 0o111))
        for path in sorted(top.rglob("*"))
        if path.is_file() and not SKIPPED & set(path.relative_to(top).parts)
    }


def fingerprint(context: Context) -> str:
    """Return 16 hexadecimal digits that change whenever a file's path, bytes or executable bit does."""
    digest = hashlib.sha256()
    for path in sorted(context):
        file = context[path]
        head = f"{len(path)}:{path}:{len(file.content)}:{int(file.executable)}:"
        digest.update(head.encode() + file.content)
    return digest.hexdigest()[:16]


def pack(context: Context) -> bytes:
    """Return the context as a tar. Equal contexts give equal bytes: owners, times and order are fixed."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path in sorted(context):
            file = context[path]
            info = tarfile.TarInfo(path)
            info.size = len(file.content)
            info.mode = 0o755 if file.executable else 0o644
            tar.addfile(info, io.BytesIO(file.content))
    return buffer.getvalue()
