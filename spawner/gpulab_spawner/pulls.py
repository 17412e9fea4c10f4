"""Pulling images that are not on the machine, where the site allows it.

A pull takes minutes and may never end, so none runs inside a start. Each has a thread of a small pool that
nothing else uses; starts that want the image wait for it, as long as a start may take, and it goes on without
them. It ends with the image, with Docker's words, or at its limit; docker-py alone would wait for ever.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import docker
import requests
import urllib3
from docker.errors import APIError, DockerException

from gpulab_spawner.errors import EngineUnavailable, ImageMissing
from gpulab_spawner.reference import Reference, parse_reference

AT_ONCE = 2
SILENCE_SECONDS = 300.0
"""Longest time without a word of Docker; checking a large layer on a slow disk says nothing for minutes."""
_ASK = "Try again later, choose another environment, or show these words to an admin."

Message = Mapping[str, Any]
PullImage = Callable[[Reference, Callable[[Message], None]], None]
"""Pull an image and hand on each of Docker's messages. Blocking; raises a Refusal."""


class PullClient(docker.APIClient):
    """docker-py's client, whose pull would wait without any limit for the next word."""

    def send(self, request: Any, **options: Any) -> Any:
        """Send a request with a limit for each read, where none was given."""
        if options.get("timeout") is None:
            options["timeout"] = SILENCE_SECONDS
        return super().send(request, **options)


def pulling(
    connect: Callable[[], docker.APIClient],
    limit_seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> PullImage:
    """Return what pulls one image by a connection of its own.

    Args:
        connect: Makes a client; it is closed when the pull ends, and Docker then gives up an unfinished one.
        limit_seconds: How long a pull may take.
        clock: Seconds that only grow.
    """

    def pull(reference: Reference, tell: Callable[[Message], None]) -> None:
        until = clock() + limit_seconds
        client = None
        try:
            client = connect()
            name, tag = reference.pull_arguments()
            for message in client.pull(name, tag, stream=True, decode=True):
                if "error" in message:
                    raise _missing(reference, str(message["error"]))
                tell(message)
                if clock() > until:
                    raise _missing(reference, f"it took longer than {limit_seconds / 60:g} min")
        except APIError as error:
            raise _missing(reference, str(error.explanation or error)) from error
        except (DockerException, requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
            raise EngineUnavailable(
                f"Docker stopped answering while it pulled {reference}: {str(error)[:200]}", next_step=_ASK
            ) from error
        finally:
            if client is not None:
                client.close()

    return pull


def _missing(reference: Reference, why: str) -> ImageMissing:
    words = " ".join(why.split())[:300]
    return ImageMissing(
        f"The image {reference} is not on this machine and could not be pulled: {words}.",
        next_step=_ASK,
        details={"image": str(reference)},
    )


@dataclass
class Pull:
    """One pull, as those who wait for it see it.

    Attributes:
        reference: The image.
        done: Done when the pull is; holds why it failed.
    """

    reference: Reference
    done: Future[None] = field(default_factory=Future)
    _layers: dict[str, tuple[int, int]] = field(default_factory=dict)

    def take(self, message: Message) -> None:
        """Note a message of Docker's; one thread calls this."""
        detail, layer = message.get("progressDetail") or {}, str(message.get("id", ""))
        if message.get("status") == "Downloading" and detail.get("total"):
            self._layers[layer] = (int(detail.get("current", 0)), int(detail["total"]))
        elif layer in self._layers:
            total = self._layers[layer][1]
            self._layers[layer] = (total, total)

    def words(self) -> str:
        """Return how far it has come: `Pulling the image lab/torch:1, 1.2 of 3.1 GB`."""
        layers = list(self._layers.values())
        have, total = sum(each[0] for each in layers), sum(each[1] for each in layers)
        size = f", {have / 1e9:.1f} of {total / 1e9:.1f} GB" if total else ""
        return f"Pulling the image {self.reference}{size}; this goes on even if the start is given up"


class Pulls:
    """Pulls each image once at a time, whoever waits for it.

    Args:
        pull: Pulls one image.
        at_once: How many run beside each other; further ones wait for their turn.
    """

    def __init__(self, pull: PullImage, at_once: int = AT_ONCE) -> None:
        self._pull = pull
        self._executor = ThreadPoolExecutor(at_once, thread_name_prefix="pull")
        self._guard = threading.Lock()
        self._running: dict[str, Pull] = {}

    def begin(self, image: str) -> Pull:
        """Begin to pull an image, or join the pull of it that goes on.

        Raises:
            ConfigError: It is no reference of an image.
        """
        reference = parse_reference(image)
        with self._guard:
            running = self._running.get(image)
            if running is None or running.done.done():
                running = self._running[image] = Pull(reference)
                running.done = self._executor.submit(self._pull, reference, running.take)
            return running

    def close(self) -> None:
        """Begin no further ones; those that go on end by themselves."""
        self._executor.shutdown(wait=False, cancel_futures=True)


def pulls_by(url: str, timeout_seconds: int, limit_seconds: float) -> Pulls:
    """Return pulls by the engine at a URL; each of its short calls and each pull has a limit."""

    def connect() -> PullClient:
        return PullClient(base_url=url, timeout=timeout_seconds, version="auto")

    return Pulls(pulling(connect, limit_seconds))
