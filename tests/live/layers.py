"""An image kept as the layers of an engine's data directory, and put into another engine by hard links.

`docker save` and `load` copy every byte of it twice and pack it in between: 760 MB took a busy machine with 2
cores 50 s for each engine. Layers never change once they are made (a container writes above them), and
Docker 20.10 and 28 keep them alike, so that a second engine may hold the same files: 2 s.

    keep(engine_a.state / "data", image_id, cached)     the engine may run
    put(cached, engine_b.state / "data")                it must not
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

_IMAGES = Path("image/overlay2")
_CONTENT = _IMAGES / "imagedb/content/sha256"
_LAYERS = _IMAGES / "layerdb/sha256"
_TAGS = _IMAGES / "repositories.json"
_FILES = Path("overlay2")


def keep(data: Path, image_id: str, place: Path) -> None:
    """Copy an image of an engine's data directory into a new one.

    Raises:
        FileNotFoundError: The engine does not keep its images with overlay2.
    """
    digest = image_id.removeprefix("sha256:")
    config = json.loads((data / _CONTENT / digest).read_text())
    tags = _with(json.loads((data / _TAGS).read_text()), image_id)
    for directory in (_CONTENT, _LAYERS, _FILES / "l"):
        (place / directory).mkdir(parents=True)
    shutil.copy(data / _CONTENT / digest, place / _CONTENT / digest)
    for chain in _chain(config["rootfs"]["diff_ids"]):
        shutil.copytree(data / _LAYERS / chain, place / _LAYERS / chain)
        own = _FILES / (data / _LAYERS / chain / "cache-id").read_text()
        _link(data / own, place / own)
        name = Path("overlay2/l") / (data / own / "link").read_text()
        (place / name).symlink_to((data / name).readlink())
    (place / _TAGS).write_text(json.dumps(tags))


def put(place: Path, data: Path) -> None:
    """Add the kept image to the data directory of an engine that does not run."""
    tags = json.loads((data / _TAGS).read_text()) if (data / _TAGS).exists() else {"Repositories": {}}
    for name, found in json.loads((place / _TAGS).read_text())["Repositories"].items():
        tags["Repositories"].setdefault(name, {}).update(found)
    for directory in (_CONTENT, _LAYERS, _FILES, _FILES / "l"):
        (data / directory).mkdir(parents=True, exist_ok=True)
        for entry in (place / directory).iterdir():
            target = data / directory / entry.name
            if target.exists() or target.is_symlink():
                continue
            if directory == _LAYERS:
                shutil.copytree(entry, target)
            elif directory == _FILES:
                _link(entry, target)
            else:
                shutil.copy(entry, target, follow_symlinks=False)
    (data / _TAGS).write_text(json.dumps(tags))


def _chain(diff_ids: list[str]) -> Iterator[str]:
    """Names of the layers, lowest first: each is the digest of the one below and of what it adds."""
    chain = ""
    for diff in diff_ids:
        chain = f"sha256:{sha256(f'{chain} {diff}'.encode()).hexdigest()}" if chain else diff
        yield chain.removeprefix("sha256:")


def _with(tags: dict[str, dict[str, dict[str, str]]], image_id: str) -> dict[str, dict[str, dict[str, str]]]:
    names = {
        repository: {tag: held for tag, held in found.items() if held == image_id}
        for repository, found in tags["Repositories"].items()
    }
    return {"Repositories": {repository: found for repository, found in names.items() if found}}


def _link(source: Path, target: Path) -> None:
    """Copy a directory, its files as hard links where both are on one filesystem."""
    if subprocess.run(["cp", "-al", source, target], check=False, capture_output=True).returncode:
        shutil.rmtree(target, ignore_errors=True)
        subprocess.run(["cp", "-a", source, target], check=True)
