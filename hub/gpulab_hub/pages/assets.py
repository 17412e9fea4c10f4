"""The pages' templates and static files, and the address of each static file.

The hub serves only its own static directory, so the lab's files have a handler of their own. An address
carries the hash of the file's content: a browser may keep it for good, and an upgrade is seen at once.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

HERE = Path(__file__).parent
TEMPLATES = HERE / "templates"
STATIC = HERE / "static"
PREFIX = "gpulab/static/"


def assets(directory: Path = STATIC) -> dict[str, str]:
    """Return each static file's name and its address below the hub's base URL."""
    return {
        path.name: f"{PREFIX}{path.name}?v={sha256(path.read_bytes()).hexdigest()[:16]}"
        for path in sorted(directory.iterdir())
        if path.is_file()
    }
