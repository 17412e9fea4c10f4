"""What each server is told, as files: a real directory, leases and readings of memory."""

import asyncio
import json
import stat
from dataclasses import replace

import pytest
from tests.hub.telemetry.readings import batch
from tests.hub.telemetry.test_status import GPU, HELD, NOW, SLICE, lease

from gpulab_hub import status_files
from gpulab_hub.standing import Downtime
from gpulab_hub.status_files import StatusFiles, keep_written
from gpulab_hub.telemetry.live import Live
from gpulab_spawner.telemetry.readings import DeviceReading


class Lab:
    """One lab's open leases, readings and clock."""

    def __init__(self, servers):
        self.servers, self.live, self.now, self.leases, self.downtime = servers, Live(), NOW, [], None
        self.files = self.start()

    def start(self):
        return StatusFiles(
            self.servers, lambda: (self.leases, self.downtime), self.live, clock=lambda: self.now
        )

    def open(self, record):
        self.leases.append(record)
        self.channel(record).mkdir(parents=True)
        return record

    def channel(self, record):
        return self.servers / record.id / "channel"

    def path(self, record):
        return self.channel(record) / "status.json"

    def read(self, record):
        return json.loads(self.path(record).read_text())


@pytest.fixture
def lab(tmp_path):
    return Lab(tmp_path)


def another(record):
    return replace(record, id="b" * 32)


def test_each_open_lease_is_told_of_its_own_devices(lab):
    one, other = lab.open(lease(HELD)), lab.open(another(lease(SLICE)))
    slice_reading = DeviceReading(SLICE.key, GPU, 5.0, 1)
    lab.live.take(batch(NOW - 1, **{GPU: 71.0, SLICE.key: slice_reading}))
    lab.files.write()
    assert [d["utilisation"] for d in lab.read(one)["devices"]] == [71.0]
    assert [(d["uuid"], d["utilisation"]) for d in lab.read(other)["devices"]] == [("MIG-7", 5.0)]
    assert lab.read(one)["devices"][0]["temperature_celsius"] == 40
    assert lab.read(one)["devices"][0]["recent"][-1] == 71.0
    assert lab.read(one)["taken_at"] == NOW - 1


def test_everybody_may_read_it_and_it_is_replaced_whole(lab):
    record = lab.open(lease(HELD))
    lab.files.write()
    before = lab.path(record).stat()
    assert stat.S_IMODE(before.st_mode) == 0o644
    with lab.path(record).open() as open_one:
        lab.now += 20
        lab.files.write()
        # Who reads at that moment still has the old one, whole.
        assert json.load(open_one)["written_at"] == NOW
    assert lab.path(record).stat().st_ino != before.st_ino
    assert [path.name for path in lab.channel(record).iterdir()] == ["status.json"]


def test_it_is_written_when_it_changed_and_sometimes_all_the_same(lab):
    record = lab.open(lease(HELD, ends_at=NOW + 9000))
    written = []
    for seconds, load in ((0, None), (2, None), (4, 30.0), (6, None), (8, None), (13, None), (14, None)):
        lab.now = NOW + seconds
        if load:
            lab.live.take(batch(lab.now, **{GPU: load}))
        lab.files.write()
        written.append(lab.read(record)["written_at"] - NOW)
    assert written[:3] == [0, 0, 4]
    assert written[3:] == [4, 4, 4, 14]


def test_an_idle_server_without_gpus_is_written_every_ten_seconds(lab):
    record = lab.open(lease())
    written = set()
    for seconds in range(0, 31, 2):
        lab.now = NOW + seconds
        lab.files.write()
        written.add(lab.read(record)["written_at"] - NOW)
    assert written == {0, 10, 20, 30}


def test_a_clock_that_was_set_back_stops_nothing(lab):
    record = lab.open(lease())
    lab.files.write()
    lab.now -= 3600
    lab.files.write()
    assert lab.read(record)["written_at"] == NOW - 3600


def test_a_server_that_is_not_made_yet_is_no_error(lab, caplog):
    lab.leases.append(lease(HELD))
    lab.files.write()
    assert list(lab.servers.iterdir()) == []
    assert caplog.text == ""


def test_one_that_cannot_be_written_leaves_the_others_alone_and_is_said_once(lab, caplog):
    bad, good = lab.open(lease(HELD)), lab.open(another(lease()))
    lab.path(bad).mkdir()
    for _ in range(3):
        lab.files.write()
        lab.now += 20
    assert lab.read(good)["layout"] == 1
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    lab.path(bad).rmdir()
    lab.files.write()
    assert lab.read(bad)["layout"] == 1


def test_figures_that_are_no_numbers_stop_no_other_server(lab):
    bad, good = lab.open(lease(HELD)), lab.open(another(lease()))
    lab.live.take(batch(NOW, **{GPU: float("nan")}))
    lab.files.write()
    assert not lab.path(bad).exists()
    assert lab.path(good).exists()


def test_a_restarted_service_goes_on(lab):
    record = lab.open(lease())
    lab.files.write()
    lab.now += 1
    lab.start().write()
    assert lab.read(record)["written_at"] == NOW + 1


def test_what_a_write_left_of_a_directory_that_was_being_removed_is_taken_out(lab):
    record, kept = lab.open(lease()), lab.open(another(lease()))
    lab.files.write()
    # As after a removal that met the writer: everything went, then the file came back.
    (lab.channel(record) / ".status.json.new").touch()
    lab.leases.remove(record)
    lab.files.write()
    assert [path.name for path in lab.servers.iterdir()] == [kept.id]


def test_what_is_not_its_own_it_does_not_remove(lab):
    record = lab.open(lease())
    (lab.channel(record) / "authorized_keys").touch()
    lab.files.write()
    lab.leases.clear()
    lab.files.write()
    assert [path.name for path in lab.channel(record).iterdir()] == ["authorized_keys"]


def test_maintenance_reaches_the_servers_that_it_ends(lab):
    one, other = lab.open(lease(HELD)), lab.open(another(lease()))
    lab.downtime = Downtime(NOW + 3600, "new driver", "root", NOW)
    lab.files.write()
    assert [each["kind"] for each in lab.read(one)["notices"]] == ["maintenance"]
    assert lab.read(one)["ends_at"] == NOW + 3600
    assert lab.read(other)["notices"] == []


class Failing:
    """Fails at first, then tells that it was called again."""

    def __init__(self):
        self.calls, self.again = 0, asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def write(self):
        self.calls += 1
        if self.calls == 1:
            raise RuntimeError("the database is away")
        self._loop.call_soon_threadsafe(self.again.set)


async def test_a_round_that_fails_is_logged_and_the_next_one_comes(caplog):
    files = Failing()
    task = asyncio.create_task(keep_written(files, every=0))
    await files.again.wait()
    task.cancel()
    assert "the database is away" in caplog.text


def test_the_file_has_the_name_that_servers_read():
    from gpulab_server import status
    from gpulab_spawner.container import CHANNEL

    assert f"{CHANNEL}/{status_files.NAME}" == str(status.FILE)
    assert status_files.status(lease(), {}, None, NOW)["layout"] == status.LAYOUT
