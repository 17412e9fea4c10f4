"""What JupyterHub 6.1 does around a spawner, step by step, and nothing else of it.

The order is that of `jupyterhub.user.User.spawn` and `.stop`, and of `JupyterHub.init_spawners`. The API's
DELETE cancels a pending start and then stops it. What the hub would have written to its database outlives it
in `Stored`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from jupyterhub.objects import Hub as HubObject

from gpulab_spawner.spawner import NEVER_SECONDS, GpuDockerSpawner, Wiring

Key = tuple[str, str]
"""A user and the name of one of their servers."""


class Spawner(GpuDockerSpawner):
    """The product's spawner, without a hub's tokens and addresses in its environment."""

    server_name = ""

    @property
    def name(self) -> str:
        return self.server_name

    def get_env(self) -> dict[str, str]:
        return {"JUPYTERHUB_API_TOKEN": "token"}


@dataclass
class Stored:
    """A server in the hub's database: the state of its spawner, and whether it has a server."""

    state: dict[str, Any] = field(default_factory=dict)
    active: bool = False


class Hub:
    """One life of the hub.

    Args:
        wiring: What its spawners are given.
        stored: The hub's database.
        answers: Whether the container of a spawner answers over HTTP.
    """

    def __init__(self, wiring: Wiring, stored: dict[Key, Stored], answers: Callable[[Spawner], bool]) -> None:
        self.wiring, self.stored, self._answers = wiring, stored, answers
        self.active: dict[Key, Spawner] = {}
        self.pending: dict[Key, asyncio.Task[None]] = {}
        self._hub = HubObject()
        self.looked: Callable[[], object] = lambda: None

    def _new(self, key: Key) -> Spawner:
        user, server = key
        wiring = self.wiring
        made = Spawner(
            hub=self._hub, user=SimpleNamespace(name=user, groups=[], settings={}), orm_spawner=None
        )
        made.log.disabled = True
        made.server_name = server
        made.wiring = lambda: wiring
        made.server = SimpleNamespace(base_url=f"/user/{user}/{server}".rstrip("/") + "/")
        made.load_state(self.stored.setdefault(key, Stored()).state)
        return made

    def starting(self, key: Key, options: dict[str, str], seconds: int) -> asyncio.Task[None]:
        """Begin a start, as the hub's API does."""
        task = asyncio.get_running_loop().create_task(self._spawn(key, options, seconds))
        self.pending[key] = task

        def end(task: asyncio.Task[None]) -> None:
            self.pending.pop(key, None)
            if not task.cancelled():
                task.exception()

        task.add_done_callback(end)
        return task

    async def _spawn(self, key: Key, options: dict[str, str], seconds: int) -> None:
        spawner = self.active[key] = self._new(key)
        spawner.start_timeout = seconds
        spawner.user_options = options
        spawner.clear_state()
        self.stored[key].active = True
        try:
            await asyncio.wait_for(spawner.start(), timeout=seconds)
        except Exception:
            await self.stop(key)
            raise
        self.stored[key].state = spawner.get_state()

    async def stop(self, key: Key) -> None:
        """Do what User.stop does; a failure of the stop itself is logged by the hub and no more."""
        spawner = self.active[key]
        try:
            # What is held back for the hub's look goes on in the middle of it, or soon after.
            asyncio.get_running_loop().call_later(0.02, self.looked)
            if await spawner.poll() is None:
                await spawner.stop()
        except Exception:  # noqa: BLE001  as the hub does
            pass
        finally:
            stored = self.stored[key]
            stored.active = False
            with suppress(Exception):  # as the hub does
                await spawner.run_post_stop_hook()
            spawner.clear_state()
            stored.state = spawner.get_state()
            self.active.pop(key, None)

    async def come_back(self) -> None:
        """Do what the hub does at its start with the servers of its database."""
        for key, stored in list(self.stored.items()):
            if not stored.active:
                continue
            spawner = self.active[key] = self._new(key)
            try:
                status = await spawner.poll()
            except Exception:  # noqa: BLE001  as the hub does
                status = -1
            if status is None and not self._answers(spawner) and spawner.http_timeout < NEVER_SECONDS:
                status = -1
            if status is not None:
                await self.stop(key)

    async def poll(self, key: Key) -> Any:
        """Ask a spawner, as the hub does every few seconds; an ended server is stopped."""
        status = await self.active[key].poll()
        if status is not None:
            await self.stop(key)
        return status
