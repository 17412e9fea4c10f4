"""A base image made on the spot, for machines that cannot pull one: debootstrap, then `docker import`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import docker

from gpulab_hub.images.failures import BuildFailed, tail

OS_RELEASE = Path("/etc/os-release")
SUITES = {"debian": ("bookworm", "trixie"), "ubuntu": ("noble",)}
"""Releases with Python 3.11 to 3.13, by distribution; the first is the default where the host is another."""


def choose_suite(os_release: str) -> tuple[str, str]:
    """Return distribution and suite to make on a host, by the text of its /etc/os-release.

    The host's own where we can use it: then the host has the keys that its packages are signed with.
    """
    fields = dict(line.split("=", 1) for line in os_release.splitlines() if "=" in line)
    here, suite = (fields.get(key, "").strip('"') for key in ("ID", "VERSION_CODENAME"))
    if suite in SUITES.get(here, ()):
        return here, suite
    return ("ubuntu", "noble") if here == "ubuntu" else ("debian", "bookworm")


def package_sources(texts: Mapping[str, str], suite: str) -> list[str]:
    """Return one-line package sources of the host for a suite, with its updates and security updates.

    Args:
        texts: File name to content of the host's source lists, in both of apt's formats.
        suite: Only this suite's entries count. Entries with a password in them are left out.
    """
    wanted = {suite, f"{suite}-updates", f"{suite}-security"}
    lines = []
    for name, text in texts.items():
        entries = _deb822(text) if name.endswith(".sources") else _one_line(text)
        for uri, found, components in entries:
            if found in wanted and "main" in components and "@" not in uri:
                lines.append(f"deb {uri} {found} main")
    return list(dict.fromkeys(lines))


def _deb822(text: str) -> list[tuple[str, str, list[str]]]:
    entries = []
    for stanza in text.split("\n\n"):
        pairs = (line.split(":", 1) for line in stanza.splitlines() if ":" in line and line[0] not in "# \t")
        fields = {key.strip().lower(): value.split() for key, value in pairs}
        if "deb" in fields.get("types", []) and fields.get("enabled", ["yes"]) != ["no"]:
            entries += [
                (uri, suite, fields.get("components", []))
                for uri in fields.get("uris", [])
                for suite in fields.get("suites", [])
            ]
    return entries


def _one_line(text: str) -> list[tuple[str, str, list[str]]]:
    found = re.findall(r"^deb\s+(?:\[[^\]\n]*\]\s+)?(\S+)\s+(\S+)[ \t]+(.+)$", text, re.MULTILINE)
    return [(uri, suite, components.split()) for uri, suite, components in found]


def root_reference() -> str:
    """Return the reference of the base image that this machine would make."""
    return f"gpulab/root:{choose_suite(OS_RELEASE.read_text())[1]}"


def ensure_root(
    client: docker.DockerClient, cache: Path, say: Callable[[str], None], anew: bool = False
) -> str:
    """Put a base image made from the distribution's packages on the engine, and return its reference.

    Args:
        client: The engine.
        cache: Directory for the root's archive, so that another engine need not make it again.
        say: Takes a line of progress.
        anew: Make it even if it was made before.

    Raises:
        BuildFailed: debootstrap is missing, not ours to run, or failed.
    """
    distribution, suite = choose_suite(OS_RELEASE.read_text())
    archive = cache / f"root-{suite}.tar"
    if anew or not archive.exists():
        say(f"making a base system from {distribution.capitalize()} {suite}'s packages (about a minute)")
        cache.mkdir(parents=True, exist_ok=True)
        _make(suite, archive)
    client.api.import_image_from_file(str(archive), repository="gpulab/root", tag=suite)
    return f"gpulab/root:{suite}"


def _make(suite: str, archive: Path) -> None:
    program = shutil.which("debootstrap", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if program is None:
        raise BuildFailed(
            "No base image could be pulled, and debootstrap is not installed to make one.",
            next_step="Install it (apt-get install debootstrap), or name an image that is here with --base.",
        )
    if os.geteuid() != 0:
        raise BuildFailed(
            "No base image could be pulled, and only root can make one.",
            next_step="Run this once as root, or name an image of this engine with --base.",
        )
    sources = package_sources(_source_lists(), suite)
    with tempfile.TemporaryDirectory(prefix="gpulab-root-", dir=archive.parent) as work:
        root = Path(work, "root")
        mirror = [sources[0].split()[1]] if sources else []
        _run([program, "--variant=minbase", "--force-check-gpg", suite, str(root), *mirror])
        if sources:
            (root / "etc/apt/sources.list").write_text("\n".join(sources) + "\n")
        made = Path(work, "root.tar")
        leave_out = [
            f"--exclude=./{path}" for path in ("var/cache/apt/*", "var/lib/apt/lists/*", "dev/*", "proc/*")
        ]
        _run(["tar", "-C", str(root), "--numeric-owner", *leave_out, "-cf", str(made), "."])
        made.rename(archive)


def _source_lists() -> dict[str, str]:
    places = [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]
    return {
        path.name: path.read_text()
        for path in places
        if path.suffix in (".list", ".sources") and path.is_file()
    }


def _run(command: list[str]) -> None:
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if run.returncode != 0:
        raise BuildFailed(
            f"{Path(command[0]).name} failed.\n{tail(run.stdout.splitlines())}",
            next_step="Mend what its last lines say, or name an image of this engine with --base.",
        )
