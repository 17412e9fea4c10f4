"""What a viewer may know of others: the one place that decides it.

Pages, streams, refusals, the API and the command line ask here. The site's policy (`privacy.holders`) says
how much a holder of a device is to others: a name, a group, or nothing but that there is one. An owner knows
all of what is theirs, an admin all but the output of others' servers. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

PROCESS_NAME = 15
"""Bytes that the kernel keeps of a process' name."""

UNNAMED = "in use"
"""What is said of a holder who is not to be named."""


class Holders(StrEnum):
    """What others are told of who holds a device."""

    NAME = "name"
    GROUP = "group"
    IN_USE = "in_use"


@dataclass(frozen=True, slots=True)
class Viewer:
    """Somebody who looks.

    Attributes:
        name: Their hub name.
        person_id: Their id in the lab, None for a service or for somebody who never started a server.
        is_admin: Whether the hub calls them an admin.
    """

    name: str
    person_id: str | None = None
    is_admin: bool = False

    def owns(self, person_id: str | None) -> bool:
        """Return whether something of a person is theirs; names are reused, ids are not."""
        return self.person_id is not None and self.person_id == person_id


@dataclass(frozen=True, slots=True)
class Known:
    """What a viewer may know of the holder of something. What they may not know is None.

    Attributes:
        mine: Whether it is the viewer's own.
        user: The holder's hub name.
        server: Name of the holder's server, "" for the default one.
        group: The holder's group, where that stands for the name.
    """

    mine: bool
    user: str | None = None
    server: str | None = None
    group: str | None = None

    @property
    def who(self) -> str:
        """The holder in a word or two: `you`, `ada`, `group vision`, or `in use`."""
        if self.mine:
            return "you"
        return self.user or (f"group {self.group}" if self.group else UNNAMED)


@dataclass(frozen=True, slots=True)
class Privacy:
    """The site's policy.

    Attributes:
        holders: What others are told of a holder.
        group_of: The hub group that stands for somebody of a name, None if they are in none.
    """

    holders: Holders = Holders.NAME
    group_of: Callable[[str], str | None] = lambda user: None

    def known(self, viewer: Viewer, person_id: str | None, user: str, server: str = "") -> Known:
        """Return what a viewer may know of a holder.

        Args:
            viewer: Who looks.
            person_id: Whose it is, for life.
            user: Their hub name.
            server: Name of their server.
        """
        mine = viewer.owns(person_id)
        if mine or viewer.is_admin or self.holders == Holders.NAME:
            return Known(mine, user, server)
        group = self.group_of(user) if self.holders == Holders.GROUP else None
        return Known(mine=False, group=group)


OPEN_HOUSE = Privacy()
"""The default: everyone sees who uses what, so that people can talk to each other."""


def holder_words(known: Known, until: str | None) -> str:
    """Return why a device is taken, in words: `taken by ada until 15:40`, `in use until 15:40`.

    Args:
        known: What the reader may know of the holder.
        until: Declared end in words, None if none is declared or it has passed.
    """
    words = UNNAMED if known.who == UNNAMED else f"taken by {known.who}"
    return words + (f" until {until}" if until else "")


def may_end(viewer: Viewer, owner: str) -> bool:
    """Return whether a viewer may end a lease of a person (their id)."""
    return viewer.is_admin or viewer.owns(owner)


def may_know_ending(viewer: Viewer, owner: str) -> bool:
    """Return whether a viewer may know of a past server how it ended, and of a running one its trouble."""
    return viewer.is_admin or viewer.owns(owner)


def may_read_output(viewer: Viewer, owner: str) -> bool:
    """Return whether a viewer may read what a server printed: it may hold anything, so its owner alone."""
    return viewer.owns(owner)


def may_see_use(viewer: Viewer, owner: str | None) -> bool:
    """Return whether a viewer may see what a person's server does: its processes, its history, its hours.

    Args:
        viewer: Who looks.
        owner: Whose server it is; None for what is nobody's, such as a process of the host.
    """
    return viewer.is_admin or viewer.owns(owner)


def process_name(name: str | None) -> str | None:
    """Return the name of a process as it may be shown to whom `may_see_use` lets: cut, and one line of text.

    Whoever runs a process chooses its name.
    """
    if name is None:
        return None
    cut = name.encode("utf-8", "replace")[:PROCESS_NAME].decode("utf-8", "ignore")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in cut)
