"""What a viewer may know of others: the one place that decides it.

Pages, refusals, the API and the command line ask here. In this lab everyone sees who uses what, so that
people can talk to each other; a site that wants it otherwise changes this function and nothing else.
"""

from __future__ import annotations


def holder_words(viewer: str, holder: str, until: str | None, *, is_admin: bool = False) -> str:
    """Return why a device is taken, in words for a viewer: `taken by ada until 15:40`.

    Args:
        viewer: Hub name of who reads it.
        holder: Hub name of who holds the device.
        until: Declared end in words, None if none is declared or it has passed.
        is_admin: Whether the viewer is an admin; admins are told the same as everyone so far.
    """
    who = "you" if viewer == holder else holder
    return f"taken by {who}" + (f" until {until}" if until else "")
