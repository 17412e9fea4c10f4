"""What admission makes of a machine that fails: a simulated one, read by the agent's own worker."""

import os
import re
from dataclasses import replace

import pytest
from tests.fakes.lab import Lab

from gpulab_hub.agent import snapshot
from gpulab_hub.agent.child import Worker, WorkerFailed, command, parts
from gpulab_hub.database import open_database
from gpulab_hub.paths import LabPaths
from gpulab_hub.simulate import stage
from gpulab_hub.simulate.live import Driver, Live
from gpulab_spawner.errors import GpusOff, InventoryStale, NoCapacity
from gpulab_spawner.placement.devices import GpuProcess
from gpulab_spawner.placement.inventory import dump, load


class WatchedLab(Lab):
    """A lab whose inventory is what the worker last answered; `look` asks it as the agent does."""

    def __init__(self, engine, machine, worker):
        super().__init__(engine)
        self.live, self._worker = Live(machine), worker
        self.look()

    def look(self, deadline=30.0):
        """Read the machine; a worker that does not answer leaves the last snapshot."""
        self._worker.gpu_seconds = deadline
        try:
            self.inventory = load(parts(self._worker.ask())[0])
        except WorkerFailed:
            return False
        self.now = self.inventory.taken_at
        return True


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("library")


@pytest.fixture
def watched(request, sqlite_url, tmp_path, cache):
    paths = LabPaths(tmp_path / "state")
    machine = stage.prepare(request.param, paths.simulate, with_nodes=False, cache=cache)
    engine = open_database(sqlite_url)
    worker = Worker(command(paths.snapshot, paths.simulate))
    yield WatchedLab(engine, machine, worker)
    worker.close()
    engine.dispose()


def on(machine):
    return pytest.mark.parametrize("watched", [machine], indirect=True)


@on("2xh100")
def test_a_lost_gpu_is_not_granted_and_the_others_are(watched):
    lost, well = (gpu.uuid for gpu in watched.inventory.gpus)
    watched.live.set_lost(0)
    watched.look()
    assert watched.open("ada").devices[0].key == well
    with pytest.raises(NoCapacity, match=r"1 out of order: it has fallen off the bus .*, 1 taken by ada"):
        watched.open("li")
    watched.live.set_lost(0, False)
    watched.look()
    assert watched.open("li").devices[0].key == lost


@on("2xh100")
def test_a_gpu_that_is_lost_under_a_server_stays_with_its_lease(watched):
    lease = watched.open("ada", "gpu:2")
    watched.live.set_lost(1)
    watched.look()
    with pytest.raises(NoCapacity):
        watched.open("li")
    watched.close(lease)
    with pytest.raises(NoCapacity, match="1 of the 2 is free"):
        watched.open("li", "gpu:2")
    assert watched.open("li").devices[0].key == lease.devices[0].key


@on("2xh100")
def test_a_hang_ages_the_snapshot_and_the_refusal_tells_the_age(watched):
    watched.live.set_hang(gpu=1)
    assert not watched.look(deadline=0.2)
    watched.now += 14
    watched.open("ada")
    watched.now += 9
    with pytest.raises(InventoryStale, match="is 23 s old, and 15 s is the limit"):
        watched.open("li")
    assert watched.open("li", "none").devices == ()
    watched.live.set_hang(False, gpu=1)
    assert watched.look()
    assert len(watched.open("bo").devices) == 1


@on("h100-mig")
def test_a_new_mig_layout_takes_the_old_devices_away(watched):
    held = watched.open("ada", "mig:1g.10gb")
    watched.live.set_layout(1, ["3g.40gb@4", "3g.40gb@0"])
    watched.look()
    assert watched.inventory.device(held.devices[0].key) is None
    with pytest.raises(NoCapacity, match=r"This machine has no MIG slice 1g\.10gb"):
        watched.open("li", "mig:1g.10gb")
    with pytest.raises(NoCapacity, match="held back: its GPU was divided anew while a server used it"):
        watched.open("li", "mig:3g.40gb")
    watched.close(held)
    assert watched.open("li", "mig:3g.40gb").devices[0].start == 0


@on("h100-mig")
def test_the_same_place_in_a_new_layout_keeps_its_name_under_a_new_uuid(watched):
    before = watched.inventory.device(watched.open("ada", "mig:1g.10gb").devices[0].key)
    watched.live.set_layout(1, ["1g.10gb@0", "3g.40gb@4"])
    watched.look()
    after = watched.inventory.device(before.key)
    assert after is not None
    assert after.uuid != before.uuid
    assert watched.open("li", "mig:3g.40gb").devices[0].start == 4


@on("h100-mig")
def test_a_foreign_process_holds_back_its_slice_in_words(watched):
    watched.live.start_process(1, os.getpid(), 1 << 30, start=0)
    watched.live.start_process(0, os.getpid(), 1 << 30)
    watched.look()
    assert watched.open("ada", "mig:1g.10gb").devices[0].start == 1
    with pytest.raises(NoCapacity, match=r"the only one is not free \(held by a process outside the lab\)"):
        watched.open("ada", "gpu:1", "second")
    watched.live.end_process(os.getpid())
    watched.look()
    assert watched.open("ada", "gpu:1", "second")


@on("2xh100")
def test_a_process_of_a_container_without_a_lease_lingers(watched):
    gpu = watched.inventory.gpus[0]
    lingering = replace(gpu, processes=(GpuProcess(7, container_id="c" * 64),))
    watched.inventory = replace(watched.inventory, gpus=(lingering, watched.inventory.gpus[1]))
    with pytest.raises(NoCapacity, match="1 still in use by a container that has no lease"):
        watched.open("ada", "gpu:2")


@on("2xh100")
@pytest.mark.parametrize(
    ("driver", "words"),
    [
        (Driver.NOT_LOADED, "The GPUs of this machine are off: The NVIDIA driver is not loaded"),
        (Driver.MISMATCH, "libraries are of another one: an upgrade has replaced them"),
    ],
)
def test_a_driver_that_goes_turns_the_gpus_off_with_the_reason_and_cpu_servers_go_on(watched, driver, words):
    watched.live.set_driver(driver)
    watched.look()
    with pytest.raises(GpusOff, match=re.escape(words)):
        watched.open("ada")
    assert watched.open("ada", "none").devices == ()
    watched.live.set_driver(Driver.WORKS)
    watched.look()
    assert watched.open("li").devices


@on("8xh100-nvl")
def test_nearness_reaches_admission_through_the_snapshot(watched, tmp_path):
    path = tmp_path / "snapshot.json"
    snapshot.write(path, dump(watched.inventory))
    watched.inventory = snapshot.read(path)
    index = {gpu.uuid: gpu.index for gpu in watched.inventory.gpus}

    def given(user, shape):
        return [index[device.key] for device in watched.open(user, shape).devices]

    assert given("ada", "gpu:1") == [0]
    assert given("li", "gpu:2") == [2, 3]
    assert given("bo", "gpu:1") == [1]
    assert given("mo", "gpu:4") == [4, 5, 6, 7]
