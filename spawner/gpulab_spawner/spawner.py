"""GpuDockerSpawner: the order in which a server comes up and goes away.

It decides nothing: the form's schema, admission, placement and the create arguments are elsewhere. Of
DockerSpawner it keeps the client's configuration and the state's names; it replaces every path on which a
fault of Docker counts as "the container is gone", an old container is resumed, or all users share one thread.

The life of a server here:

    start    read options -> person -> image -> storage -> lease -> files -> create -> start -> answers
    poll     None while it runs or nothing is known; an exit status once it has ended or is gone
    stop     SIGTERM, grace, SIGKILL
    release  after every end (JupyterHub always runs the post-stop hook): removed, then the lease is closed

JupyterHub calls `stop()` only if `poll()` says that it runs, and `clear_state()` also before a start: neither
is an end. `release` is the only place that closes a lease, and only once Docker has said that the container
is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

from dockerspawner import DockerSpawner
from sqlalchemy.orm import object_session
from traitlets import Callable as CallableTrait
from traitlets import Unicode

from gpulab_spawner.answering import LOOK_SECONDS, wait_for_answer
from gpulab_spawner.calls import Calls
from gpulab_spawner.container import PORT, Server, container_name, create_arguments
from gpulab_spawner.engine import LAST_LINES, ContainerState
from gpulab_spawner.errors import (
    BadOptions,
    EngineUnavailable,
    ImageMissing,
    LabError,
    LeaseConflict,
    LedgerUnavailable,
    Refusal,
    StartFailed,
)
from gpulab_spawner.form import Choice, options_from_form, options_from_query, parse_options
from gpulab_spawner.gate import Held, Lease, LeaseRequest, Person
from gpulab_spawner.progress import Progress, granted_words
from gpulab_spawner.pulls import Pull
from gpulab_spawner.refusal import SpawnRefused, refused_to_the_hub
from gpulab_spawner.wiring import Wiring

T = TypeVar("T")

# A server loaded from the hub's database already runs. At its start the hub stops every server that does not
# answer within http_timeout, though Docker says that it runs (a training that hogs the CPU, a frozen cgroup).
NEVER_SECONDS = 10 * 365 * 24 * 3600
# The hub gives up a start without a word (str of its TimeoutError is ""): a moment earlier we do, with words.
GIVE_UP_BEFORE_SECONDS = 1


class GpuDockerSpawner(DockerSpawner):  # type: ignore[misc]
    """Starts each server in a container that holds exactly the devices of its lease."""

    wiring = CallableTrait(help="A plain function that returns the Wiring.").tag(config=True)

    lease_id = Unicode(help="Id of the open lease, empty when there is none.")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._progress = Progress()
        self._calls = Calls()
        self._patience = self.http_timeout

    # Options

    def options_from_form(self, form_data: dict[str, list[str]]) -> dict[str, str]:
        """Return the options of the spawn page's form; a refusal comes back on the page."""
        with refused_to_the_hub():
            return options_from_form(form_data)

    def options_from_query(self, query_data: dict[str, list[str]]) -> dict[str, str]:
        """Return the options of a link to the spawn page."""
        with refused_to_the_hub():
            return options_from_query(query_data)

    # State in the hub's database

    @property
    def will_resume(self) -> bool:
        """Never: with a yes, the hub keeps the API token and OAuth client of every ended server."""
        return False

    def get_state(self) -> dict[str, Any]:
        """Return what must survive a hub restart."""
        state: dict[str, Any] = super().get_state()
        if self.lease_id:
            state["lease_id"] = self.lease_id
        return state

    def load_state(self, state: dict[str, Any]) -> None:
        """Take over a server that outlived the hub."""
        super().load_state(state)
        self.lease_id = state.get("lease_id", "")
        if self.lease_id:
            self.http_timeout = NEVER_SECONDS

    def clear_state(self) -> None:
        """Forget the container. The lease is not forgotten: `release` alone ends it."""
        super().clear_state()
        self.object_id = ""

    # The order of things

    async def start(self) -> str:
        """Start the server and return its URL once it answers.

        Raises:
            SpawnRefused: It was refused, in words for the user.
        """
        self._progress.begin()
        self.http_timeout = self._patience
        self._forget_options()
        try:
            async with asyncio.timeout(self.start_timeout - GIVE_UP_BEFORE_SECONDS) as patience:
                await self._end_last_lease()
                return await self._start()
        except Refusal as refusal:
            raise SpawnRefused(refusal) from refusal
        except TimeoutError as error:
            if not patience.expired():
                raise
            raise SpawnRefused(self._too_slow()) from error

    async def _start(self) -> str:
        wiring: Wiring = self.wiring()
        choice = self._choice(wiring)
        person = await self._blocking(wiring.gate.find_person, self.user.name)
        await self._check_image(wiring, choice)
        if await self._blocking(wiring.storage.prepare, person):
            self._progress.tell(15, "Made your home and workspace directories")
        lease = await self._lease(wiring, choice, person)
        self._progress.tell(30, granted_words(lease))
        shares = await self._blocking(wiring.shares, self._groups())
        await self._blocking(wiring.storage.write_files, lease, shares)
        server = Server(
            lease=lease,
            profile=choice.profile,
            environment=self._environment(),
            command=[*self.cmd, *self.get_args()] if self.cmd else (),
            injection=await self._blocking(wiring.inject, lease.devices),
            shares=shares,
        )
        self.object_name = self._container()
        self.object_id = await self._blocking(
            wiring.engine.create, create_arguments(wiring.site, server), self.object_name
        )
        await self._blocking(wiring.gate.note_container, lease.id, self.object_id, self.object_name)
        self._progress.tell(50, "Docker made the container")
        await self._blocking(wiring.engine.start, self.object_id)
        self._progress.tell(70, "Docker started the container; waiting for Jupyter")
        url = await self._up(wiring)
        await self._blocking(wiring.gate.note_running, lease.id)
        self._progress.tell(95, "Jupyter answers")
        return url

    async def poll(self) -> str | int | None:
        """Return None while the server runs or nothing is known of it, else how it ended."""
        await self._calls.settle()
        if not self.lease_id:
            return 0
        wiring: Wiring = self.wiring()
        try:
            state = await self._blocking(wiring.engine.inspect, self._container())
        except EngineUnavailable as error:
            self.log.warning("%s: %s It counts as running.", self._log_name, error.message)
            return None
        if state is None:
            return 0
        return None if state.alive else state.ending()

    async def stop(self, now: bool = False) -> None:
        """End the server's processes; `release` does the rest."""
        wiring: Wiring = self.wiring()
        try:
            await self._blocking(wiring.gate.note_stopping, self.lease_id, "stopped")
        except LedgerUnavailable as error:
            # The hub takes a stop that fails for one that was done, and forgets a server that runs on.
            self.log.warning("%s: nobody will know that it was stopped: %s", self._log_name, error.message)
        grace = 1 if now else wiring.site.stop_grace_seconds
        await self._blocking(wiring.engine.stop, self._container(), grace)

    async def run_post_stop_hook(self) -> None:
        """Release what the server held; JupyterHub runs this after every end, whatever came before."""
        try:
            await self.release()
        finally:
            if (hook := super().run_post_stop_hook()) is not None:
                await hook

    async def release(self) -> None:
        """Remove the ended container and close the lease; while Docker says nothing, keep both."""
        await self._calls.settle()
        if not self.lease_id:
            return
        wiring: Wiring = self.wiring()
        try:
            ending = await self._blocking(self._remove, wiring)
        except LabError as error:
            self.log.error("%s: lease %s stays open: %s", self._log_name, self.lease_id, error.message)
            return
        await self._blocking(wiring.gate.close_lease, self.lease_id, ending)
        await self._blocking(wiring.storage.remove_files, self.lease_id)
        self.log.info("%s: lease %s closed: %s", self._log_name, self.lease_id, ending)
        self.lease_id = ""
        self.object_id = ""

    def _remove(self, wiring: Wiring) -> str:
        state = wiring.engine.inspect(self._container())
        if state is None:
            return "gone"
        if state.alive:
            raise LabError(f"the container {state.id[:12]} still runs")
        # Written before the removal, which takes exit code and log with it.
        wiring.gate.note_ended(self.lease_id, state.ended(wiring.engine.logs(state.id, LAST_LINES)))
        wiring.engine.remove(state.id)
        return state.ending()

    # Steps of a start

    async def rename(self, old_name: str, new_name: str) -> None:
        """Let a server be renamed once it has ended; its lease names it.

        Raises:
            SpawnRefused: The new name is none, or the last server here has not ended for certain.
        """
        with refused_to_the_hub():
            _require_name(new_name)
            await self._end_last_lease()

    async def _end_last_lease(self) -> None:
        """Release what an earlier end could not: nothing is started beside a container that may still run.

        What the hub has forgotten the ledger knows: a hub that ends in the middle of a start stores no state.
        """
        await self.release()
        held = await self._blocking(self.wiring().gate.open_lease_of, self.user.name, self.name)
        if held is not None:
            await self._take_back(held)
            await self.release()
        if self.lease_id:
            raise LeaseConflict(
                "Your last server here has not ended for certain: Docker has not confirmed it.",
                next_step="Try again in a minute; if it stays, an admin must look at Docker (gpulab doctor).",
                details={"lease": self.lease_id},
            )

    async def _take_back(self, held: Held) -> None:
        """End the container of an open lease and make the lease ours to release.

        One that has answered may hold somebody's work: unless its end was asked for, its owner must end it.
        """
        wiring: Wiring = self.wiring()
        container = held.container_id or container_name(wiring.site.hub_id, held.lease_id)
        state = await self._blocking(wiring.engine.inspect, container)
        if state is not None and state.alive:
            if held.answered and not held.ending:
                raise LeaseConflict(
                    "A server of yours runs here that the hub has lost sight of.",
                    next_step="End it on the GPUs page, then start again; your files stay.",
                    details={"lease": held.lease_id},
                )
            await self._blocking(wiring.gate.note_stopping, held.lease_id, "its start was cut short")
            grace = wiring.site.stop_grace_seconds if held.answered else 1
            await self._blocking(wiring.engine.stop, container, grace)
        self.lease_id, self.object_id = held.lease_id, held.container_id or ""

    def _too_slow(self) -> StartFailed:
        last = f": {self._progress.last}" if self._progress.last else ""
        return StartFailed(
            f"Your server was not up within {self.start_timeout} s. This is how far it came{last}.",
            next_step="Start it again; if it stays, an admin can look at Docker (gpulab doctor) and allow it "
            "more time (servers.start_timeout_seconds).",
            details={"seconds": self.start_timeout},
        )

    def _forget_options(self) -> None:
        """Keep no options for next time: the hub would reuse them, refused ones too, for an empty request."""
        if self.orm_spawner is not None:
            self.orm_spawner.user_options = {}
            # Left uncommitted, it is rolled back when the request that started the server ends.
            if (session := object_session(self.orm_spawner)) is not None:
                session.commit()

    def _choice(self, wiring: Wiring) -> Choice:
        _require_name(self.name)
        choice = parse_options(self.user_options, wiring.catalogue)
        self.image = choice.profile.image
        self.mem_limit = choice.profile.memory_bytes
        self.cpu_limit = choice.profile.cpus
        return choice

    async def _check_image(self, wiring: Wiring, choice: Choice) -> None:
        self._progress.tell(5, "Waiting for Docker")
        there = await self._blocking(wiring.engine.image, choice.profile.image) is not None
        if not there and wiring.pulls is not None:
            await self._pulled(wiring.pulls.begin(choice.profile.image))
        elif not there:
            raise ImageMissing(
                f"The image {choice.profile.image} of {choice.profile.display_name} is not on this machine.",
                next_step="Choose another environment, or ask an admin to build or pull it.",
                details={"image": choice.profile.image},
            )

    async def _pulled(self, pull: Pull) -> None:
        """Wait for a pull, and tell how far it has come; a cancel ends the wait alone."""
        while not pull.done.done():
            if (words := pull.words()) != self._progress.last:
                self._progress.tell(8, words)
            await asyncio.sleep(LOOK_SECONDS)
        pull.done.result()

    async def _lease(self, wiring: Wiring, choice: Choice, person: Person) -> Lease:
        request = LeaseRequest(
            user=person.name,
            server=self.name,
            profile=choice.profile.slug,
            shape=choice.shape,
            memory_bytes=choice.profile.guarantee_bytes,
            runtime_seconds=choice.runtime_seconds,
            image=choice.profile.image,
            cpus=choice.profile.cpus,
            groups=tuple(self._groups()),
        )

        def take() -> Lease:
            # Noted in the thread that got it: a cancel of the waiting task must not lose it.
            lease = wiring.gate.open_lease(request)
            self.lease_id = lease.id
            return lease

        return await self._blocking(take)

    def _groups(self) -> list[str]:
        return [group.name for group in self.user.groups]

    def _environment(self) -> dict[str, str]:
        return {key: str(value) for key, value in self.get_env().items()}

    async def _up(self, wiring: Wiring) -> str:
        """Wait for the server's first HTTP answer and return its URL; start_timeout bounds the wait."""
        while not (address := (await self._alive(wiring)).addresses.get(wiring.site.network, "")):
            await asyncio.sleep(LOOK_SECONDS)
        url = f"http://{address}:{PORT}"
        await wait_for_answer(f"{url}{self.server.base_url}api", lambda: self._alive(wiring))
        return url

    async def _alive(self, wiring: Wiring) -> ContainerState:
        state = await self._blocking(wiring.engine.inspect, self.object_id)
        if state is not None and state.alive:
            return state
        output = await self._blocking(wiring.engine.logs, self.object_id) if state else ""
        ending = state.ending() if state else "it was removed"
        words = output.strip()[-400:] or "none"
        raise StartFailed(
            f"Your server ended before it answered: {ending}. Its last words: {words}",
            next_step="Start it again; if it stays, show these words to an admin.",
        )

    # Plumbing

    def progress(self) -> AsyncIterator[dict[str, Any]]:
        """Yield what has happened since the start, with the seconds that it took."""
        return self._progress.events()

    def _container(self) -> str:
        """Return the container of the open lease: its id where that is known, else the name it was given."""
        return self.object_id or container_name(self.wiring().site.hub_id, self.lease_id)

    async def _blocking(self, function: Callable[..., T], *args: Any) -> T:
        return await self._calls.run(self.wiring().executor, function, *args)


def _require_name(server: str) -> None:
    if server == "default":
        raise BadOptions(
            'A server cannot be named "default".',
            next_step="Choose another name, or start the one without.",
        )
