"""What the pages say of servers that ended and whose owner did not ask for it.

The hub's home page is its own handler's and gets nothing of ours but `template_vars`. What stands there is
called for every page of the hub, so that it gives the template a function, and only the home page calls it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from sqlalchemy import Engine

from gpulab_hub.database import reading
from gpulab_hub.history import Record, newest_of
from gpulab_hub.lifecycle import is_unclean, told
from gpulab_hub.people import find_person
from gpulab_hub.when import say_time
from gpulab_spawner.errors import LabError

log = logging.getLogger(__name__)

Endings = Callable[[str, Sequence[str]], Sequence[str]]
"""Return for a user and names of servers how those ended that came over them, in words. Blocking."""


def newest_leases(database: Engine, user: str, servers: Sequence[str]) -> list[Record | None]:
    """Return the newest lease of each of a user's servers, None where there never was one. Blocking."""
    person = find_person(database, user)
    if person is None:
        return [None] * len(servers)
    with reading(database) as connection:
        return [newest_of(connection, person.id, server) for server in servers]


def ending_words(newest: Record | None, now: float) -> str:
    """Return how a server ended and when: `ended: out of memory at 14:02`; "" if it runs, or ended well.

    Args:
        newest: The newest lease of the server.
        now: Unix time in seconds.
    """
    if newest is None or newest.closed_at is None or not is_unclean(newest.cause, newest.exit_code):
        return ""
    said = told(newest.cause, newest.exit_code, newest.close_reason)
    if said.startswith("ended "):  # such words have their time in them
        return said.rstrip(".")
    at = newest.closed_at if newest.ended_at is None else newest.ended_at
    return f"ended: {said} at {say_time(at, now)}"


def home_words(server: str, newest: Record | None, now: float) -> str:
    """Return the home page's sentence on a server's end: `Your server ended: exit code 1 at 14:02.`."""
    words = ending_words(newest, now)
    named = f" {server}" if server else ""
    return f"Your server{named} {words}." if words else ""


def endings_for_pages(read: Endings) -> Callable[[Any], Callable[[Sequence[str]], Awaitable[Sequence[str]]]]:
    """Return what stands in JupyterHub's template_vars as `endings`: `endings(server names)` in a template.

    Args:
        read: Reads how a user's servers ended.
    """

    def of_user(user: Any) -> Callable[[Sequence[str]], Awaitable[Sequence[str]]]:
        async def endings(servers: Sequence[str]) -> Sequence[str]:
            if user is None:
                return ()
            try:
                return await asyncio.to_thread(read, user.name, list(servers))
            except LabError as error:
                # A page without the note is better than none: it is where a server is started.
                log.warning("How the servers of %s ended could not be read: %s", user.name, error)
                return ()

        return endings

    return of_user
