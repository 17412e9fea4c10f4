"""Reads of Docker that are put again.

A read that fails at once, by a 5xx or a cut connection, changes nothing, and Docker often answers a moment
later. What failed slowly, a time-out above all, is not put again: the deadlines of a lease's life count on
one limit for one call. What changes something is never put again here: whether it was done is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import requests
from docker.errors import APIError

PAUSES = (0.2, 0.6)
"""Seconds before a read that failed is put for the second and for the third time."""
AGAIN_SECONDS = 1.5
"""Seconds from the first question on after which a read is not put again."""

T = TypeVar("T")


def read(
    ask: Callable[[], T],
    sleep: Callable[[float], None],
    clock: Callable[[], float],
    pauses: Sequence[float] = PAUSES,
) -> T:
    """Ask what changes nothing, and again after each pause while it fails at once.

    Args:
        ask: Asks by docker-py, whose errors come through.
        sleep: Waits, in seconds.
        clock: Seconds of the monotonic clock.
        pauses: Seconds before each further question.
    """
    until = clock() + AGAIN_SECONDS
    for pause in pauses:
        try:
            return ask()
        except (APIError, requests.RequestException) as error:
            if not _may_pass(error) or clock() + pause > until:
                raise
        sleep(pause)
    return ask()


def _may_pass(error: Exception) -> bool:
    """Return whether a fault may be over in a moment: a 5xx or a cut connection, not a time-out."""
    if isinstance(error, APIError):
        return error.status_code is not None and error.status_code >= 500
    cut = (requests.ConnectionError, requests.exceptions.ChunkedEncodingError)
    return isinstance(error, cut) and not isinstance(error, requests.Timeout)
