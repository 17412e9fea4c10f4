"""What a build must know of this machine: a build sees none of its certificates, proxies or pip settings."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpulab_hub.images.recipes import ContextFile

CERTIFICATES = Path("/usr/local/share/ca-certificates")
PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy")
PIP = ("index-url", "extra-index-url", "trusted-host")
"""Settings of pip that a build takes over. What names this machine's own files (find-links) stays out."""


@dataclass(frozen=True, slots=True)
class Site:
    """This machine's settings for builds.

    Attributes:
        certificates: File name to PEM bytes of certificates trusted besides the system's.
        pip: Values of pip's settings, in order; may hold passwords.
        proxies: Proxy variables in both spellings. Docker keeps these, and only these, out of an image's
            history.
    """

    certificates: Mapping[str, bytes] = field(default_factory=dict)
    pip: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    proxies: Mapping[str, str] = field(default_factory=dict)

    def trusted(self) -> dict[str, ContextFile]:
        """Return the context's files that end up in the image."""
        return {f"site/ca/{name}": ContextFile(pem) for name, pem in self.certificates.items()}

    def secret(self) -> dict[str, ContextFile]:
        """Return the context's files that only the stage that installs packages sees."""
        if not self.pip:
            return {}
        lines = ["[global]"]
        for name, values in self.pip.items():
            lines.append(f"{name} =")
            lines.extend(f"    {value}" for value in values)
        return {"site/pip.conf": ContextFile(("\n".join(lines) + "\n").encode())}


def gather(
    environ: Mapping[str, str], certificates: Path = CERTIFICATES, pip_list: str | None = None
) -> Site:
    """Return this machine's settings.

    Args:
        environ: Environment with the proxy variables.
        certificates: Directory of additional certificates, as update-ca-certificates reads it.
        pip_list: Output of `pip config list`; None runs it.
    """
    return Site(
        certificates={path.name: path.read_bytes() for path in sorted(certificates.glob("**/*.crt"))},
        pip=pip_settings(_pip_config_list() if pip_list is None else pip_list),
        proxies=proxies(environ),
    )


def pip_settings(text: str) -> dict[str, tuple[str, ...]]:
    """Return what a build takes over of `pip config list`.

    Of two places that set a value the one that pip itself would follow counts: the environment, then the
    section of `pip install`, then the global one. URLs of this machine's own files are left out.
    """
    found: dict[str, tuple[int, tuple[str, ...]]] = {}
    for line in text.splitlines():
        key, _, quoted = line.partition("=")
        section, _, name = key.rpartition(".")
        rank = {"global": 1, "install": 2, ":env:": 3}.get(section, 0)
        if name not in PIP or rank <= found.get(name, (0, ()))[0]:
            continue
        try:
            value = ast.literal_eval(quoted)
        except (ValueError, SyntaxError):
            continue
        values = tuple(
            v for v in str(value).split() if name == "trusted-host" or v.startswith(("http://", "https://"))
        )
        found[name] = (rank, values)
    return {name: found[name][1] for name in PIP if name in found and found[name][1]}


def proxies(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the proxy variables in both spellings; where both are set, the lower-case one counts."""
    both: dict[str, str] = {}
    for name in PROXIES:
        value = environ.get(name) or environ.get(name.upper())
        if value:
            both |= {name: value, name.upper(): value}
    return both


def _pip_config_list() -> str:
    # Our interpreter's pip: what reached the lab's own packages reaches the image's too.
    run = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    )
    return run.stdout if run.returncode == 0 else ""
