"""Images of the live tests: a tiny one made from one static program, and the product's base image."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from importlib.metadata import version
from pathlib import Path

import docker
from tests.live import cache, layers
from tests.live.engines import Engine

TINY = "gpulab-test/tiny:latest"
BASE = "gpulab/base:latest"
_RECIPE = Path(__file__).parents[2] / "images" / "base"

_DIRECTORIES = ("bin", "dev", "etc", "home", "proc", "root", "run", "sys", "tmp", "var", "workspace")
_PASSWD = b"root:x:0:0:root:/root:/bin/sh\n"


def busybox() -> Path:
    """Return this machine's static busybox.

    Raises:
        RuntimeError: There is none, or it needs libraries that the image would lack.
    """
    found = shutil.which("busybox", path="/usr/bin:/bin")
    if found is None or b"/ld-linux" in Path(found).read_bytes():
        raise RuntimeError("The tiny image needs a static busybox. Install busybox-static.")
    return Path(found)


def ensure_tiny(client: docker.DockerClient) -> str:
    """Return the tiny image (2 MB: a shell, nc, httpd, stat) of an engine, made if it is missing."""
    if not client.images.list(TINY):
        _import_tiny(client)
    return TINY


def _import_tiny(client: docker.DockerClient) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name in _DIRECTORIES:
            directory = tarfile.TarInfo(name)
            directory.type, directory.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            tar.addfile(directory)
        tar.add(busybox(), "bin/busybox")
        for applet in ("sh", "sleep", "cat", "ls", "id", "stat", "nc", "httpd", "mknod", "dd", "env"):
            link = tarfile.TarInfo(f"bin/{applet}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
        entry = tarfile.TarInfo("etc/passwd")
        entry.size = len(_PASSWD)
        tar.addfile(entry, io.BytesIO(_PASSWD))
    repository, tag = TINY.split(":")
    client.api.import_image_from_data(archive.getvalue(), repository=repository, tag=tag)


def ensure_base(engine: Engine) -> str:
    """Return the base image of an engine: built once per recipe and cache directory, shared from then on.

    It has the tags that `gpulab images build` gives, so that deploy/up finds nothing to build.
    """
    client = engine.client(timeout=600)
    try:
        if not client.images.list(BASE):
            kept = cache.once(
                f"base-{cache.fingerprint(_sources())}", lambda path: _build(engine, client, path)
            )
            if not client.images.list(BASE):
                engine.restart(lambda: layers.put(kept, engine.data))
    finally:
        client.close()
    return BASE


def _sources() -> list[Path | str]:
    files = sorted(path for path in _RECIPE.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return [*files, version("gpulab")]


def _build(engine: Engine, client: docker.DockerClient, path: Path) -> None:
    # Loaded late: the tests of the engines alone need nothing of the product.
    from gpulab_hub.images import site
    from gpulab_hub.images.build import build

    built = build("base", client, site=site.gather(os.environ), cache=cache.directory(), say=print)
    layers.keep(engine.data, built.id, path)


def derive(engine: Engine, tag: str, *lines: str) -> str:
    """Make an image of an engine from the base image and lines of a Dockerfile; return its reference."""
    client = engine.client(timeout=600)
    try:
        return build(client, tag, f"FROM {ensure_base(engine)}", *lines)
    finally:
        client.close()


def build(client: docker.DockerClient, tag: str, *lines: str) -> str:
    """Make an image from the lines of a Dockerfile; return its reference."""
    client.images.build(fileobj=io.BytesIO("\n".join(lines).encode()), tag=tag, rm=True)
    return tag
