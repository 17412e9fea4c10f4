"""How the faults of docker-py are told: what nobody knows, and what a request itself is to blame for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import requests
import urllib3
from docker.errors import APIError, DockerException

from gpulab_spawner.errors import EngineUnavailable, StartFailed

LOOK = "Try again in a minute; if it stays, an admin must look at Docker (gpulab doctor)."
"""What to do when nothing is known."""


@contextmanager
def told_apart() -> Iterator[None]:
    """Word every fault as EngineUnavailable; what an answer below 500 says of a request is told inside.

    Raises:
        EngineUnavailable: Nothing is known.
    """
    try:
        yield
    except APIError as error:
        raise EngineUnavailable(
            f"Docker answered {error.status_code}: {_first_line(error.explanation or str(error))}",
            next_step=LOOK,
            details={"status": error.status_code},
        ) from error
    except (DockerException, requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
        raise EngineUnavailable(
            f"Docker does not answer: {_first_line(str(error))}", next_step=LOOK
        ) from error


def say_of_the_request(error: APIError) -> None:
    """Raise StartFailed if an answer is about the request itself: trying again would not help.

    Raises:
        StartFailed: It is.
    """
    if error.status_code in (400, 404):
        raise StartFailed(
            f"Docker does not start this server: {_first_line(error.explanation or str(error))}",
            next_step="Show these words to an admin, who can see what is missing with gpulab doctor.",
            details={"status": error.status_code},
        ) from error


def _first_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[0][:300]
