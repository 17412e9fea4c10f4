"""What the hub is put together from: what it refuses, and how groups and devices become mounts."""

import gc
import os
from zoneinfo import ZoneInfo

import pytest
from tests.fakes.docker_engine import fake_engine
from tests.fakes.lab import request

from gpulab_hub import injecting
from gpulab_hub.assembly import assemble
from gpulab_hub.database import lab_database
from gpulab_hub.deploy.record import LabRecord
from gpulab_hub.injecting import injector
from gpulab_hub.migrations import upgrade
from gpulab_hub.paths import LabPaths
from gpulab_hub.settings import SharedDirectory, parse
from gpulab_hub.shared import shares_of
from gpulab_spawner.container import Share
from gpulab_spawner.errors import (
    ConfigError,
    DeviceVanished,
    EngineUnavailable,
    GpusOff,
    HostDiskShort,
    OverLimit,
    StorageUnavailable,
)
from gpulab_spawner.gate import Person
from gpulab_spawner.injection import DriverFiles
from gpulab_spawner.placement.devices import Device

CARD = Device("GPU-a", "GPU-a", "GPU-a", "NVIDIA H100", minor=0)


@pytest.fixture
def paths(tmp_path):
    paths = LabPaths(tmp_path / "lab")
    paths.state.mkdir()
    paths.config.write_text("")
    for path in (paths.database, paths.signing_key):
        path.parent.mkdir(parents=True, exist_ok=True)
    paths.signing_key.write_text("00" * 32)
    database = lab_database(paths, create=True)
    upgrade(database)
    database.dispose()
    return paths


def record(engine):
    return LabRecord(
        hub_id="0" * 12,
        release="0.1.0",
        listen="127.0.0.1",
        port=8000,
        proxy_api_port=8001,
        hub_port=8081,
        network="gpulab-n",
        gateway="172.31.0.1",
        engine=engine,
        supervisor="none",
        memlock=True,
    )


def test_a_lab_is_put_together_from_its_settings(paths, tmp_path):
    homes = tmp_path / "homes"
    homes.mkdir()
    settings = parse(
        "servers: {pids: 99, memory: 2G, environment: {A: b}}\n"
        f"storage: {{root: {homes}, reserve: 4096T}}"
    )
    with fake_engine(paths.state) as engine:
        lab = assemble(paths, record(engine.url), settings)
        site, profile = lab.wiring.site, lab.catalogue.default
        assert (site.network, site.storage_root, site.pids) == ("gpulab-n", str(homes), 99)
        assert site.memlock_unlimited
        with pytest.raises(HostDiskShort, match=r"4194304\.0 GiB are kept in reserve"):
            lab.wiring.storage.prepare(Person("p" * 32, "ada", 200001, "ada-1f2e3d"))
        assert (profile.memory_bytes, profile.environment) == (2 << 30, {"A": "b"})
        assert lab.wiring.engine.inspect("nobody") is None
        assert lab.now().offers.keys() == {"python"}
        assert lab.wiring.pulls is None
        lab.wiring.engine._client.close()
        lab.wiring.executor.shutdown()
        lab.database.dispose()


def test_images_are_pulled_where_the_settings_allow_it(paths):
    with fake_engine(paths.state) as engine:
        engine.registry["lab/torch:2"] = lambda: [{"status": "Pull complete"}]
        lab = assemble(paths, record(engine.url), parse("engine: {pull: true, pull_minutes: 1.0}"))
        lab.wiring.pulls.begin("lab/torch:2").done.result(10)
        assert "lab/torch:2" in engine.images
        lab.wiring.pulls.close()
        lab.wiring.engine._client.close()
        lab.wiring.executor.shutdown()
        lab.database.dispose()


def test_the_first_limits_of_the_file_hold_and_days_are_the_sites(paths):
    settings = parse(
        "time_zone: Asia/Kathmandu\nlimits: {everyone: {servers: 0}, group:vision: {servers: 1}}"
    )
    with fake_engine(paths.state) as engine:
        lab = assemble(paths, record(engine.url), settings)
        with pytest.raises(OverLimit, match=r"You may have no servers \(for everyone\)"):
            lab.wiring.gate.open_lease(request(shape="none"))
        assert lab.wiring.gate.open_lease(request(shape="none", groups=("vision",)))
        assert lab.allowance("ada", ()).zone == ZoneInfo("Asia/Kathmandu")
        assert lab.reconciler._book.zone == lab.admission._ledger.zone == ZoneInfo("Asia/Kathmandu")
        lab.wiring.engine._client.close()
        lab.wiring.executor.shutdown()
        lab.database.dispose()


@pytest.mark.filterwarnings("ignore:.*unclosed <socket:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_a_hub_without_docker_says_so(paths):
    with pytest.raises(EngineUnavailable, match=r"Docker does not answer at unix:///nowhere/docker\.sock"):
        assemble(paths, record("unix:///nowhere/docker.sock"), parse(""))
    gc.collect()  # docker-py leaves the socket of a failed connect to the collector: let it be here


def test_a_shared_directory_around_the_lab_is_refused(paths):
    settings = parse(f"storage: {{shared: [{{name: all, path: {paths.state.parent}}}]}}")
    with pytest.raises(ConfigError, match="the lab's state directory"):
        assemble(paths, record("unix:///s"), settings)


@pytest.fixture
def corpora(tmp_path):
    path = tmp_path / "corpora"
    path.mkdir()
    return SharedDirectory(name="corpora", path=str(path), groups=("nlp",), writers=("nlp-admins",))


def test_a_shared_directory_is_seen_by_its_groups_and_written_by_its_writers(corpora):
    assert shares_of([corpora], ["vision"]) == ()
    assert shares_of([corpora], ["nlp"]) == (Share("corpora", corpora.path, False),)
    assert shares_of([corpora], ["nlp-admins"])[0].writable
    everyones = corpora.model_copy(update={"groups": ()})
    assert shares_of([everyones], []) == (Share("corpora", corpora.path, False),)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root: a directory is given to a group")
def test_a_writer_gets_the_directorys_group_but_never_that_of_root(corpora):
    os.chown(corpora.path, 0, 4321)
    assert shares_of([corpora], ["nlp-admins"]) == (Share("corpora", corpora.path, True, 4321),)
    assert shares_of([corpora], ["nlp"])[0].gid is None
    os.chown(corpora.path, 0, 0)
    assert shares_of([corpora], ["nlp-admins"]) == (Share("corpora", corpora.path, True, None),)


@pytest.mark.parametrize("groups", [["nlp"], ["nlp-admins"]])
@pytest.mark.parametrize(("made", "words"), [(None, "No such file"), ("file", "it is not a directory")])
def test_a_shared_directory_that_is_not_there_is_refused_in_words(tmp_path, groups, made, words):
    path = tmp_path / "gone"
    if made:
        path.touch()
    gone = SharedDirectory(name="corpora", path=str(path), groups=("nlp",), writers=("nlp-admins",))
    with pytest.raises(StorageUnavailable, match=rf"The shared directory corpora .*{words}") as caught:
        shares_of([gone], groups)
    assert "storage.shared" in caught.value.next_step
    assert shares_of([gone], ["vision"]) == ()


def give(monkeypatch, paths, *ways):
    """Let the doctor find these ways, one after the other; return how a lab gives devices."""
    asked = []

    def found(*arguments):
        asked.append(arguments)
        return ways[min(len(asked), len(ways)) - 1]

    monkeypatch.setattr(injecting, "injection_way", found)
    return injector(paths, record("unix:///s"), parse("")), asked


def test_the_way_is_looked_for_until_one_is_found_and_then_kept(monkeypatch, paths):
    inject, asked = give(monkeypatch, paths, None, "cdi", "nvidia")
    assert inject(()).requests == ()
    assert asked == []
    with pytest.raises(GpusOff, match="no sound way"):
        inject([CARD])
    for _ in range(2):
        assert inject([CARD]).requests[0]["Driver"] == "cdi"
    assert len(asked) == 2


def test_the_runtime_of_nvidia_is_a_way(monkeypatch, paths):
    inject, _ = give(monkeypatch, paths, "nvidia")
    assert inject([CARD]).requests[0]["Driver"] == "nvidia"


def test_a_node_that_is_gone_is_said_of_its_device(monkeypatch, paths, tmp_path):
    inject, _ = give(monkeypatch, paths, "devices")
    nodes = DriverFiles(
        node_root="/dev", absent_nodes=frozenset({"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"})
    )
    monkeypatch.setattr(injecting.driver_files, "find", lambda directory: nodes)
    with pytest.raises(DeviceVanished, match="A device node of GPU-a is not there any more: /dev/nvidia0"):
        inject([CARD])
