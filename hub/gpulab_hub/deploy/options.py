"""The flags of `deploy/up`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpulab_hub.paths import DEFAULT_STATE


@dataclass(frozen=True, slots=True)
class Options:
    """What the admin asked for.

    Attributes:
        state: State directory of the lab.
        source: The clone that the lab is installed from.
        simulate: Machine to simulate (a shipped name or a YAML file), None if not asked for.
        port: Port of the lab, None if not named.
        listen: Address that it listens on, None if not named.
        yes: Whether every question is answered with yes.
    """

    state: Path
    source: Path
    simulate: str | None = None
    port: int | None = None
    listen: str | None = None
    yes: bool = False


def parse(argv: Sequence[str], source: Path) -> Options:
    """Return the options in the arguments; wrong usage ends the process with status 2."""
    parser = argparse.ArgumentParser(
        prog="deploy/up", description="Install and start a GPU lab on this machine.", allow_abbrev=False
    )
    parser.add_argument(
        "--simulate", metavar="MACHINE", help="simulate a machine: 2xh100, h100-mig or a file"
    )
    parser.add_argument("--state", metavar="DIR", type=Path, default=DEFAULT_STATE, help="state directory")
    parser.add_argument("--port", metavar="N", type=_port, help="port of the lab (8000 at first)")
    parser.add_argument("--listen", metavar="ADDR", help="address to listen on (127.0.0.1 at first)")
    parser.add_argument("--yes", action="store_true", help="answer every question with yes")
    found = parser.parse_args(argv)
    return Options(
        state=found.state.absolute(),
        source=source,
        simulate=found.simulate,
        port=found.port,
        listen=found.listen,
        yes=found.yes,
    )


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: write a number from 1 to 65535")
    return int(text)
