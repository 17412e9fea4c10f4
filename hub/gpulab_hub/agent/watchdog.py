"""Ends an agent whose loop no longer turns, so that its supervisor starts another.

The standard library's faulthandler does it from a thread of its own that needs nothing of the interpreter; it
writes where each thread stood before it ends the process. It works under every supervisor that restarts what
ends.
"""

from __future__ import annotations

import faulthandler

SILENT_SECONDS = 30.0
"""A round that takes longer than that does not end any more."""


def turn() -> None:
    """Say that the loop turns: the process lives for `SILENT_SECONDS` from now on, or until the next turn."""
    faulthandler.dump_traceback_later(SILENT_SECONDS, exit=True)


def rest() -> None:
    """Watch no longer."""
    faulthandler.cancel_dump_traceback_later()
