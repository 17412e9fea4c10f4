"""Decide what a container of a lab image is to do. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

HELP = """usage: gpulab-start [OPTION...]           start Jupyter with these options of Jupyter Server
       gpulab-start COMMAND [ARGUMENT...]  run a command in a server's environment, without Jupyter

Started by a hub, it is the user's server; otherwise a JupyterLab on port 8888, guarded by a token that it
prints. GPULAB_START=stock starts it with every import that stock Jupyter makes."""


class Refused(Exception):
    """The container was not started in a way that works; the message says how to."""


@dataclass(frozen=True, slots=True)
class Start:
    """What to do.

    Attributes:
        kind: `hub`, a user's server of a hub; `alone`, a JupyterLab by itself; `command`; `help`.
        arguments: Options for Jupyter, or the command.
        lean: Whether imports that a server never uses are left out.
    """

    kind: Literal["hub", "alone", "command", "help"]
    arguments: tuple[str, ...]
    lean: bool = True


def decide(arguments: Sequence[str], environ: Mapping[str, str], uid: int) -> Start:
    """Return what to do.

    Raises:
        Refused: Jupyter would run as root.
    """
    given = tuple(arguments)
    if given[:1] in (("-h",), ("--help",)):
        return Start("help", ())
    if given and not given[0].startswith("-"):
        return Start("command", given)
    if uid == 0:
        raise Refused(
            "Jupyter does not run as root here: leave out --user 0 (it runs as lab, uid 1000), or name a "
            "user that is not root, such as --user $(id -u):$(id -g)."
        )
    lean = environ.get("GPULAB_START", "") != "stock"
    if environ.get("JUPYTERHUB_SERVICE_URL"):
        return Start("hub", given, lean)
    return Start(
        "alone", ("--ServerApp.ip=0.0.0.0", "--ServerApp.port_retries=0", "--no-browser", *given), lean
    )
