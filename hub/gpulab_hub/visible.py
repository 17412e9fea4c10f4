"""What a viewer may know of others: the one place that decides it.

Pages, refusals, the API and the command line ask here. In this lab everyone sees who uses what, so that
people can talk to each other; a site that wants it otherwise changes this function and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass


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


@dataclass(frozen=True, slots=True)
class Viewer:
    """Somebody who looks.

    Attributes:
        name: Their hub name.
        person_id: Their id in the lab, None for a service or for somebody who never started a server.
        is_admin: Whether the hub calls them an admin.
    """

    name: str
    person_id: str | None
    is_admin: bool = False

    def owns(self, person_id: str | None) -> bool:
        """Return whether something of a person is theirs; names are reused, ids are not."""
        return self.person_id is not None and self.person_id == person_id


def may_end(viewer: Viewer, owner: str) -> bool:
    """Return whether a viewer may end a lease of a person (their id)."""
    return viewer.is_admin or viewer.owns(owner)


def may_know_ending(viewer: Viewer, owner: str) -> bool:
    """Return whether a viewer may know of a past server how it ended, and of a running one its trouble."""
    return viewer.is_admin or viewer.owns(owner)


def may_read_output(viewer: Viewer, owner: str) -> bool:
    """Return whether a viewer may read what a server printed: it may hold anything, so its owner alone."""
    return viewer.owns(owner)
