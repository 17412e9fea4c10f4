"""Images of the live tests: a tiny one made from one static program, and the product's base image."""

from __future__ import annotations

import io
import shutil
import tarfile
from pathlib import Path

import docker
from tests.live import cache

TINY = "gpulab-test/tiny:latest"
BASE = "gpulab/base:latest"

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


def copy_image(reference: str, source: docker.DockerClient, target: docker.DockerClient) -> None:
    """Copy an image from one engine to another through a file in the cache directory's file system."""
    path = cache.directory() / f".copy-{cache.fingerprint([reference])}.tar"
    try:
        with path.open("wb") as out:
            for chunk in source.images.get(reference).save(named=True):
                out.write(chunk)
        with path.open("rb") as packed:
            target.images.load(packed)
    finally:
        path.unlink(missing_ok=True)
