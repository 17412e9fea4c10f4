"""The site's gpulab.yaml: copied once from the documented template, then the admin's alone."""

from __future__ import annotations

import re
from pathlib import Path

from gpulab_hub.deploy.layout import write_new
from gpulab_hub.deploy.options import Options
from gpulab_hub.deploy.preflight import DEFAULT_LISTEN, DEFAULT_PORT
from gpulab_hub.settings import Settings, load, parse
from gpulab_spawner.errors import ConfigError


def with_listen(template: str, address: str, port: int) -> str:
    """Return the template with the two settings that `deploy/up` has flags for."""
    text, found = re.subn(r"(?m)^  address: .*$", f"  address: {address!r}", template, count=1)
    text, also = re.subn(r"(?m)^  port: .*$", f"  port: {port}", text, count=1)
    if not (found and also):
        raise ConfigError("listen", "the template of gpulab.yaml has no address and port to fill in")
    return text


def first_text(template: str, options: Options) -> str:
    """Return the first gpulab.yaml of a lab."""
    return with_listen(template, options.listen or DEFAULT_LISTEN, options.port or DEFAULT_PORT)


def read(config: Path, template: Path, options: Options) -> Settings:
    """Return the settings of a lab, or those that its first gpulab.yaml will hold; nothing is written.

    Raises:
        ConfigError: The file is broken, or a flag contradicts it.
    """
    if not config.exists():
        return parse(first_text(template.read_text(encoding="utf-8"), options), str(template))
    settings = load(config)
    for flag, asked, has, key in (
        ("--port", options.port, settings.listen.port, "listen.port"),
        ("--listen", options.listen, settings.listen.address, "listen.address"),
    ):
        if asked is not None and asked != has:
            raise ConfigError(
                key,
                f"it is {has} there, and {flag} says {asked}.",
                source=str(config),
                next_step="Edit the file, then run deploy/up without the flag.",
            )
    return settings


def ensure(config: Path, template: Path, options: Options) -> str:
    """Write the first gpulab.yaml unless there is one; return what was done, in words."""
    if config.exists():
        return f"{config} is yours and stays as it is"
    write_new(config, first_text(template.read_text(encoding="utf-8"), options), 0o640)
    return f"{config} made"
