"""GpuDockerSpawner against an engine of memory and a gate that remembers what it was asked."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest
from jupyterhub import orm
from jupyterhub.objects import Hub
from sqlalchemy.orm import object_session
from tests.fakes.docker_engine import AnswersServerError, DropsTheConnection, FailsAfterDoing
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

from gpulab_spawner.container import Share, Site
from gpulab_spawner.errors import LabError, LeaseConflict, LedgerUnavailable, NoCapacity
from gpulab_spawner.gate import Gate, Held, Lease, Person
from gpulab_spawner.injection import by_cdi
from gpulab_spawner.placement.devices import Device
from gpulab_spawner.profiles import Defaults, read_profiles
from gpulab_spawner.pulls import PullClient, Pulls, pulling
from gpulab_spawner.refusal import SpawnRefused
from gpulab_spawner.spawner import NEVER_SECONDS, GpuDockerSpawner
from gpulab_spawner.wiring import Wiring

ADDRESS = "127.0.0.77"
ADA = Person("p" * 32, "ada", 200001, "ada-1f2e3d")
SITE = Site("0123456789ab", "gpulab-net", "/srv/lab", "/srv/servers", "gpulab/base:1")


@dataclass
class RememberingGate:
    """A gate that grants one GPU to everyone, or what a test sets."""

    refusal: Exception | None = None
    stopping_fails: Exception | None = None
    running_fails: Exception | None = None
    waits: threading.Event | None = None
    entered: threading.Event = field(default_factory=threading.Event)
    asked: list = field(default_factory=list)
    noted: dict = field(default_factory=dict)
    closed: dict = field(default_factory=dict)
    running: list = field(default_factory=list)
    stopping: dict = field(default_factory=dict)
    ended: dict = field(default_factory=dict)

    def open_lease(self, request):
        self.entered.set()
        if self.waits:
            self.waits.wait(10)
        if self.refusal:
            raise self.refusal
        self.asked.append(request)
        device = Device("GPU-a", "GPU-a", "GPU-a", "NVIDIA H100", minor=0)
        return Lease(f"{len(self.asked):032x}", "w", ADA, request.server, request.profile, (device,), 1, 0.0)

    def gate(self):
        return Gate(
            open_lease=self.open_lease,
            note_container=lambda lease, container, name: self.noted.__setitem__(lease, container),
            note_running=self.note_running,
            note_stopping=self.note_stopping,
            note_ended=lambda lease, ended: self.ended.setdefault(lease, ended),
            close_lease=lambda lease, reason: self.closed.setdefault(lease, reason),
            open_lease_of=self.open_lease_of,
            find_person=lambda name: ADA,
        )

    def note_running(self, lease):
        if self.running_fails:
            raise self.running_fails
        self.running.append(lease)

    def note_stopping(self, lease, reason):
        if self.stopping_fails:
            raise self.stopping_fails
        self.stopping.setdefault(lease, reason)

    def open_lease_of(self, user, server):
        opened = (f"{number:032x}" for number in range(1, len(self.asked) + 1))
        for lease in opened:
            if lease not in self.closed:
                return Held(lease, self.noted.get(lease), lease in self.running, lease in self.stopping)
        return None


@dataclass
class Group:
    name: str


class NoStorage:
    """Storage that remembers whose files exist."""

    def __init__(self):
        self.files = set()

    def prepare(self, person):
        return False

    def write_files(self, lease, shares):
        self.files.add(lease.id)

    def remove_files(self, lease_id):
        self.files.discard(lease_id)


class Answers(RequestHandler):
    def get(self, *path):
        self.set_status(403)


@pytest.fixture
async def jupyter():
    """A server that answers where the fake containers live."""
    server = HTTPServer(Application([(r"/.*", Answers)]))
    server.add_sockets(bind_sockets(8888, ADDRESS))
    yield server
    server.stop()
    await server.close_all_connections()


@pytest.fixture
def gate():
    return RememberingGate()


@pytest.fixture
def storage():
    return NoStorage()


@pytest.fixture
def spawner(engine, fake, gate, storage):
    fake.on_start = lambda container: setattr(container, "address", ADDRESS)
    executor = ThreadPoolExecutor(4)
    catalogue = read_profiles(
        [{"display_name": "Python", "gpu": ["none", "gpu:1"]}],
        Defaults("gpulab/base:1", 4 << 30, 3 << 30, 1.5),
    )
    wiring = Wiring(
        gate.gate(),
        catalogue,
        SITE,
        engine,
        storage,
        executor,
        by_cdi,
        lambda groups: (Share("d", "/d", False),),
    )

    class Bare(GpuDockerSpawner):
        """With the variables of a hub that is not there."""

        def get_env(self):
            return {"JUPYTERHUB_API_TOKEN": "t"}

    made = Bare(
        hub=Hub(), user=SimpleNamespace(name="ada", groups=[Group("vision")], settings={}), orm_spawner=None
    )
    made.wiring = lambda: wiring
    made.server = SimpleNamespace(base_url="/user/ada/")
    made.user_options = {"shape": "gpu:1"}
    yield made
    executor.shutdown()


@pytest.fixture
def stored_by_hub(spawner):
    """Give the spawner the hub's own row of a server."""
    session = orm.new_session_factory("sqlite:///:memory:")()

    def store(name, options):
        row = orm.Spawner(name=name, user=orm.User(name="ada"), user_options=options)
        session.add(row)
        session.commit()
        spawner.orm_spawner = row
        spawner.user_options = options

    yield store
    spawner.orm_spawner = None
    session.close()
    session.get_bind().dispose()


async def ended_by_hub(spawner):
    """Do what JupyterHub's User.stop does after a failure, a poll that said "ended", or a user's stop."""
    failure = None
    try:
        if await spawner.poll() is None:
            await spawner.stop()
    except LabError as error:
        failure = error
    await spawner.run_post_stop_hook()
    spawner.clear_state()
    return failure


async def test_a_server_comes_up_and_goes_away(spawner, fake, gate, storage, jupyter):
    assert await spawner.start() == f"http://{ADDRESS}:8888"
    (container,) = fake.containers.values()
    assert gate.noted == {spawner.lease_id: container.id}
    assert gate.running == [spawner.lease_id]
    assert container.config["Labels"]["gpulab.lease"] == spawner.lease_id
    assert container.config["HostConfig"]["DeviceRequests"][0]["DeviceIDs"] == ["nvidia.com/gpu=GPU-a"]
    assert await spawner.poll() is None
    assert storage.files == {spawner.lease_id}
    assert await ended_by_hub(spawner) is None
    assert fake.containers == {}
    assert gate.closed == {f"{1:032x}": "exit code 143"}
    assert gate.stopping == {f"{1:032x}": "stopped"}
    assert gate.ended[f"{1:032x}"].exit_code == 143
    assert storage.files == set()
    assert spawner.get_state() == {}


async def test_what_was_chosen_reaches_admission_and_the_container(spawner, fake, gate, jupyter):
    spawner.user_options = {"shape": "gpu:1", "runtime": "4h"}
    spawner.cmd, spawner.args = ["start-notebook"], ["--debug"]
    await spawner.start()
    (request,) = gate.asked
    assert (request.cpus, request.groups) == (1.5, ("vision",))
    assert (request.user, request.server, request.profile, request.image) == (
        "ada",
        "",
        "python",
        "gpulab/base:1",
    )
    assert (str(request.shape), request.runtime_seconds, request.memory_bytes) == ("gpu:1", 14400, 3 << 30)
    (container,) = fake.containers.values()
    assert "JUPYTERHUB_API_TOKEN=t" in container.config["Env"]
    assert container.config["Cmd"][0] == "start-notebook"
    assert container.config["Cmd"][-1] == "--debug"
    assert (spawner.mem_limit, spawner.cpu_limit) == (4 << 30, 1.5)  # JupyterHub tells them to Jupyter
    await ended_by_hub(spawner)


@pytest.mark.parametrize(("now", "seconds"), [(False, SITE.stop_grace_seconds), (True, 1)])
async def test_a_stop_that_is_wanted_now_gives_a_second(spawner, fake, jupyter, now, seconds):
    await spawner.start()
    await spawner.stop(now=now)
    assert fake.graces == [seconds]
    await ended_by_hub(spawner)


async def test_progress_says_what_happens_in_words(spawner, jupyter):
    start = asyncio.ensure_future(spawner.start())
    words = []
    async for event in spawner.progress():
        assert event["elapsed"] >= 0
        words.append(event["message"])
        if event["progress"] == 95:
            break
    await start
    assert words == [
        "Waiting for Docker",
        "Granted: NVIDIA H100 (GPU-a)",
        "Docker made the container",
        "Docker started the container; waiting for Jupyter",
        "Jupyter answers",
    ]
    await ended_by_hub(spawner)


async def test_a_refusal_reaches_the_hub_in_its_words_and_holds_nothing(spawner, fake, gate):
    gate.refusal = NoCapacity("No GPU is free: 2 of 2 are taken.", next_step="Start without a GPU.")
    with pytest.raises(SpawnRefused) as caught:
        await spawner.start()
    assert caught.value.jupyterhub_message == (
        "No GPU is free: 2 of 2 are taken. Start without a GPU. [no_capacity]"
    )
    await ended_by_hub(spawner)
    assert "create" not in fake.calls
    assert gate.closed == {}


@pytest.mark.parametrize(
    ("options", "name", "code"),
    [
        ({"image": "evil"}, "", "bad_options"),
        ({"shape": "gpu:2"}, "", "not_offered"),
        ({"profile": "other"}, "", "bad_options"),
        ({}, "default", "bad_options"),
    ],
)
async def test_what_the_form_hides_start_refuses_too(spawner, gate, stored_by_hub, options, name, code):
    stored_by_hub(name, options)
    with pytest.raises(SpawnRefused) as caught:
        await spawner.start()
    assert caught.value.reason == code
    assert gate.asked == []


async def test_an_empty_request_gets_the_defaults(spawner, gate, jupyter):
    spawner.user_options = {}
    await spawner.start()
    assert str(gate.asked[0].shape) == "none"
    await ended_by_hub(spawner)


@pytest.mark.parametrize("options", [{"image": "evil"}, {"shape": "gpu:1"}])
async def test_options_are_not_kept_for_next_time(spawner, fake, stored_by_hub, options):
    fake.images.clear()
    stored_by_hub("", options)
    with pytest.raises(SpawnRefused):
        await spawner.start()
    object_session(spawner.orm_spawner).rollback()
    assert spawner.orm_spawner.user_options == {}


async def test_a_missing_image_is_refused_before_anything_is_granted(spawner, fake, gate):
    fake.images.clear()
    with pytest.raises(SpawnRefused, match="image gpulab/base:1 of Python is not on this machine"):
        await spawner.start()
    assert gate.asked == []
    assert "pull" not in fake.calls


@pytest.fixture
def pulls(spawner, fake):
    """Let the site allow pulls."""
    fake.images.clear()
    made = Pulls(pulling(lambda: PullClient(base_url=fake.url, timeout=5, version="1.41"), 60))
    allowed = replace(spawner.wiring(), pulls=made)
    spawner.wiring = lambda: allowed
    yield made
    made.close()


async def test_an_image_is_pulled_where_the_site_allows_it_before_anything_is_granted(
    spawner, fake, gate, pulls, jupyter
):
    granted = []

    def brought():
        granted.extend(gate.asked)
        yield {"status": "Downloading", "id": "a", "progressDetail": {"current": 1, "total": 10**9}}

    fake.registry["gpulab/base:1"] = brought
    await spawner.start()
    assert (fake.pulled, granted, len(gate.asked)) == (["gpulab/base:1"], [], 1)
    words = [event["message"] for event in spawner._progress._events]
    assert words[1].startswith("Pulling the image gpulab/base:1")
    assert words[-1] == "Jupyter answers"
    await ended_by_hub(spawner)


async def test_a_pull_that_fails_refuses_the_start_in_dockers_words(spawner, gate, pulls):
    with pytest.raises(SpawnRefused, match=r"could not be pulled: manifest for .* not found"):
        await spawner.start()
    await ended_by_hub(spawner)
    assert (gate.asked, gate.closed) == ([], {})


async def test_a_start_waits_for_a_pull_no_longer_than_a_start_may_take_and_it_goes_on(
    spawner, fake, gate, pulls, jupyter
):
    let_go = threading.Event()

    def slowly():
        yield {"status": "Downloading", "id": "a", "progressDetail": {"current": 10**8, "total": 10**9}}
        let_go.wait(10)

    fake.registry["gpulab/base:1"] = slowly
    spawner.start_timeout = 2
    with pytest.raises(SpawnRefused, match=r"not up within 2 s.*: Pulling the image .*, 0\.1 of 1\.0 GB"):
        await spawner.start()
    await ended_by_hub(spawner)
    assert gate.asked == []
    going = pulls.begin("gpulab/base:1")
    let_go.set()
    await asyncio.to_thread(going.done.result, 10)
    spawner.start_timeout = 60
    await spawner.start()
    assert fake.pulled == ["gpulab/base:1"]
    await ended_by_hub(spawner)


@pytest.mark.parametrize(
    "fault", [AnswersServerError("create"), FailsAfterDoing("create"), AnswersServerError("start")]
)
async def test_a_start_that_docker_fails_leaves_neither_container_nor_lease(spawner, fake, gate, fault):
    fake.fault = fault
    with pytest.raises(SpawnRefused, match="Docker answered 500"):
        await spawner.start()
    fake.fault = None
    await ended_by_hub(spawner)
    assert fake.containers == {}
    assert len(gate.closed) == 1


async def test_a_server_whose_lease_was_withdrawn_while_it_started_does_not_run_on(
    spawner, fake, gate, storage, jupyter
):
    gate.running_fails = LeaseConflict("The grant of your server was withdrawn while it started.")
    with pytest.raises(SpawnRefused, match=r"withdrawn while it started.*\[lease_conflict\]"):
        await spawner.start()
    assert fake.calls[-1] == "inspect"  # the container runs; what follows a failed start ends it
    await ended_by_hub(spawner)
    assert (fake.containers, storage.files, spawner.lease_id) == ({}, set(), "")
    assert fake.graces
    assert list(gate.closed) == [f"{1:032x}"]


async def test_a_server_that_ends_before_it_answers_says_its_last_words(spawner, fake, gate):
    fake.on_start = lambda c: (setattr(c, "output", "no module named jupyter\n"), fake.end(c, 1))
    with pytest.raises(SpawnRefused, match=r"ended before it answered: exit code 1.*no module named jupyter"):
        await spawner.start()
    await ended_by_hub(spawner)
    assert gate.closed == {f"{1:032x}": "exit code 1"}


@pytest.mark.parametrize("fault", [AnswersServerError("inspect"), DropsTheConnection("inspect")])
async def test_a_hiccup_of_docker_is_not_an_end(spawner, fake, gate, jupyter, fault):
    await spawner.start()
    fake.fault = fault
    assert await spawner.poll() is None
    await spawner.run_post_stop_hook()
    assert gate.closed == {}
    assert spawner.lease_id
    fake.fault = None
    await ended_by_hub(spawner)
    assert len(gate.closed) == 1


async def test_a_stop_that_docker_does_not_answer_keeps_lease_and_container(spawner, fake, gate, jupyter):
    await spawner.start()
    fake.fault = DropsTheConnection("stop")
    assert "Docker does not answer" in str(await ended_by_hub(spawner))
    assert (gate.closed, gate.ended) == ({}, {})
    state = spawner.get_state()
    assert state["lease_id"]
    # The next start ends it, for its end was asked for, and starts nothing beside it.
    with pytest.raises(SpawnRefused, match="Docker does not answer"):
        await spawner.start()
    assert len(fake.containers) == 1
    await ended_by_hub(spawner)
    fake.fault = None
    await spawner.start()
    assert gate.closed == {f"{1:032x}": "exit code 143"}
    assert len(fake.containers) == 1
    await ended_by_hub(spawner)
    assert fake.containers == {}


async def test_a_stop_goes_on_while_the_ledger_does_not_answer(spawner, fake, gate, jupyter):
    await spawner.start()
    gate.stopping_fails = LedgerUnavailable("The lab's database does not answer.")
    assert await ended_by_hub(spawner) is None
    assert fake.containers == {}


async def test_a_hub_that_knows_only_the_lease_finds_its_container(spawner, fake, gate, jupyter):
    await spawner.start()
    fake.fault = DropsTheConnection("stop")
    await ended_by_hub(spawner)
    fake.fault = None
    spawner.object_name = "of-another-hub"
    spawner.load_state(spawner.get_state())
    assert await spawner.poll() is None
    assert await ended_by_hub(spawner) is None
    assert (fake.containers, list(gate.closed)) == ({}, [f"{1:032x}"])


async def test_the_hub_keeps_no_token_of_an_ended_server(spawner):
    assert spawner.will_resume is False


async def test_a_server_that_ends_by_itself_is_released_without_a_stop(spawner, fake, gate, jupyter):
    await spawner.start()
    (container,) = fake.containers.values()
    container.output = "killed\n"
    fake.end(container, 137, oom=True)
    assert await spawner.poll() == "out of memory"
    await ended_by_hub(spawner)
    assert "stop" not in fake.calls
    assert list(gate.closed.values()) == ["out of memory"]
    assert gate.stopping == {}
    (ended,) = gate.ended.values()
    assert (ended.exit_code, ended.out_of_memory, ended.last_words) == (137, True, "killed\n")


async def test_a_start_that_takes_too_long_says_so_before_the_hub_gives_up_without_a_word(
    spawner, fake, gate
):
    spawner.start_timeout = 2  # nothing answers
    with pytest.raises(SpawnRefused, match=r"not up within 2 s.*: Docker started the container; waiting"):
        await spawner.start()
    await ended_by_hub(spawner)
    assert (list(gate.closed), fake.containers) == ([f"{1:032x}"], {})


async def test_a_cancel_while_the_grant_is_under_way_loses_no_lease(spawner, gate):
    gate.waits = threading.Event()
    start = asyncio.ensure_future(spawner.start())
    await asyncio.to_thread(gate.entered.wait)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    end = asyncio.ensure_future(ended_by_hub(spawner))
    await asyncio.sleep(0)
    gate.waits.set()
    await end
    assert list(gate.closed) == [f"{1:032x}"]


async def test_a_cancel_while_docker_starts_the_container_leaves_none_running(spawner, fake, gate):
    starts, go_on = threading.Event(), threading.Event()
    fake.before_start = lambda: (starts.set(), go_on.wait(10))
    start = asyncio.ensure_future(spawner.start())
    await asyncio.to_thread(starts.wait)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    poll = asyncio.ensure_future(spawner.poll())
    await asyncio.wait({poll}, timeout=0.2)  # an answer now would be "made but never started"
    go_on.set()
    assert await poll is None
    assert await ended_by_hub(spawner) is None
    assert fake.containers == {}
    assert list(gate.closed) == [f"{1:032x}"]


async def test_a_container_without_an_address_is_not_asked_for_it_without_pause(spawner, fake):
    fake.on_start = lambda container: setattr(container, "address", "")
    spawner.start_timeout = 2
    with pytest.raises(SpawnRefused, match="not up within 2 s"):
        await spawner.start()
    assert fake.calls.count("inspect") < 40
    await ended_by_hub(spawner)


async def test_shared_directories_are_looked_at_off_the_event_loop(spawner, jupyter):
    threads = []
    wiring = replace(spawner.wiring(), shares=lambda groups: threads.append(threading.current_thread()) or ())
    spawner.wiring = lambda: wiring
    await spawner.start()
    assert threads[0] is not threading.main_thread()
    await ended_by_hub(spawner)


async def test_a_rename_waits_for_the_end_of_the_last_server(spawner, fake, jupyter):
    await spawner.start()
    fake.fault = DropsTheConnection("stop")
    await ended_by_hub(spawner)
    with pytest.raises(SpawnRefused, match="Docker does not answer"):
        await spawner.rename("", "training")
    fake.fault = None
    await spawner.rename("", "training")
    assert fake.containers == {}


async def test_no_server_is_renamed_to_the_name_of_none(spawner):
    with pytest.raises(SpawnRefused, match='cannot be named "default"'):
        await spawner.rename("training", "default")


async def test_a_server_that_outlived_the_hub_is_never_stopped_for_being_slow(spawner, jupyter):
    await spawner.start()
    state = spawner.get_state()
    patience = spawner.http_timeout
    spawner.load_state(state)
    assert spawner.http_timeout == NEVER_SECONDS
    assert spawner.object_id == state["object_id"]
    await ended_by_hub(spawner)
    await spawner.start()
    assert spawner.http_timeout == patience
    await ended_by_hub(spawner)


async def test_a_second_start_uses_a_new_container(spawner, fake, jupyter):
    await spawner.start()
    first = set(fake.containers)
    await ended_by_hub(spawner)
    await spawner.start()
    assert first.isdisjoint(fake.containers)
    await ended_by_hub(spawner)


async def test_a_gone_container_is_ended_and_its_lease_closed(spawner, fake, gate, jupyter):
    await spawner.start()
    fake.containers.clear()
    assert await spawner.poll() == 0
    await ended_by_hub(spawner)
    assert list(gate.closed.values()) == ["gone"]


async def forgotten(spawner, gate, *, answered):
    """Leave what a hub leaves that ends between two steps of a start: a lease and no state."""
    await spawner.start()
    if not answered:
        gate.running.clear()
    spawner.lease_id = spawner.object_id = ""
    return gate.open_lease_of("ada", "")


async def test_a_start_takes_back_what_a_start_before_it_left(spawner, fake, gate, jupyter):
    first = await forgotten(spawner, gate, answered=False)
    await spawner.start()
    assert list(gate.closed) == [first.lease_id]
    assert first.container_id not in fake.containers
    assert gate.stopping[first.lease_id] == "its start was cut short"
    await ended_by_hub(spawner)


async def test_a_server_that_has_answered_is_left_to_its_owner(spawner, fake, gate, jupyter):
    held = await forgotten(spawner, gate, answered=True)
    with pytest.raises(SpawnRefused, match=r"lost sight of.*End it on the GPUs page"):
        await spawner.start()
    assert gate.closed == {}
    assert fake.containers[held.container_id].status == "running"


async def test_a_forgotten_server_that_has_ended_makes_way(spawner, fake, gate, jupyter):
    held = await forgotten(spawner, gate, answered=True)
    fake.end(fake.containers[held.container_id], 1)
    await spawner.start()
    assert gate.ended[held.lease_id].exit_code == 1
    await ended_by_hub(spawner)
