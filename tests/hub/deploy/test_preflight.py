"""A refusal of the first checks names what and where, and leaves nothing behind."""

import dataclasses
from pathlib import Path

import pytest
from tests.fakes.machine import FakeMachine, ForeignAddress, NoRoot, NoSpace, PortTaken

from gpulab_hub import locks
from gpulab_hub.deploy import preflight
from gpulab_hub.deploy import record as records
from gpulab_hub.deploy.options import Options
from gpulab_spawner.errors import LabError

SOURCE = Path(__file__).parents[3]


@pytest.fixture
def reachable(monkeypatch):
    """Directories of a test are deep, and closed to others."""
    monkeypatch.setattr(preflight, "_closed", lambda state: None)
    monkeypatch.setattr(preflight, "_LONGEST_STATE", 500)


def options(paths, **flags):
    return Options(state=paths.state, source=SOURCE, **flags)


@pytest.mark.usefixtures("reachable")
@pytest.mark.parametrize(
    ("failure", "flags", "words"),
    [
        (NoRoot(), {}, "needs root"),
        (PortTaken(8000, "nginx (process 7)"), {}, "Port 8000 on 127.0.0.1 is taken by nginx (process 7)."),
        (PortTaken(8123), {"port": 8123}, "Port 8123 on 127.0.0.1 is taken. Choose another with --port"),
        (ForeignAddress("192.0.2.9"), {"listen": "192.0.2.9"}, "192.0.2.9 is not an address of this machine"),
        (NoSpace(2**30), {}, "needs 2.0 GiB of free space and has 1.0 GiB"),
    ],
)
def test_a_refusal_is_worded_and_leaves_nothing(paths, failure, flags, words):
    with pytest.raises(LabError) as caught:
        preflight.check(options(paths, **flags), FakeMachine(failure))
    assert words in str(caught.value)
    assert not paths.state.exists()


@pytest.mark.usefixtures("reachable")
def test_a_sound_machine_passes_and_nothing_is_made(paths):
    preflight.check(options(paths), FakeMachine())
    assert not paths.state.exists()


@pytest.mark.usefixtures("reachable")
def test_the_labs_own_proxy_is_no_obstacle(paths, record):
    paths.run.mkdir(parents=True)
    records.save(paths.state, record)
    busy = FakeMachine(PortTaken(8000))
    with pytest.raises(LabError, match=r"taken"):
        preflight.check(options(paths), busy)
    with locks.hold(preflight.proxy_lock(paths), "proxy"):
        preflight.check(options(paths), busy)
        with pytest.raises(LabError, match=r"Port 9000"):
            preflight.check(options(paths, port=9000), FakeMachine(PortTaken(8000), PortTaken(9000)))


@pytest.mark.usefixtures("reachable")
@pytest.mark.parametrize(
    ("theirs", "refused"), [("0.1.0", False), ("0.0.9", False), ("0.1.1", True), ("1.0", True)]
)
def test_a_lab_of_a_newer_release_is_left_alone(paths, record, theirs, refused):
    paths.state.mkdir()
    records.save(paths.state, dataclasses.replace(record, release=theirs))
    before = records.path_of(paths.state).read_bytes()
    if refused:
        with pytest.raises(LabError, match=f"release {theirs}, which is newer"):
            preflight.check_release(records.load(paths.state), "0.1.0", paths.state)
    else:
        preflight.check_release(records.load(paths.state), "0.1.0", paths.state)
    assert records.path_of(paths.state).read_bytes() == before


@pytest.mark.usefixtures("reachable")
def test_a_directory_that_holds_something_else_is_refused(paths):
    paths.state.mkdir()
    (paths.state / "thesis.tex").touch()
    with pytest.raises(LabError, match=r"holds something else already \(thesis.tex\)"):
        preflight.check_state(paths.state)
    (paths.state / "hub-id").touch()
    preflight.check_state(paths.state)


def test_a_file_is_no_state_directory(tmp_path, reachable):
    (tmp_path / "lab").touch()
    with pytest.raises(LabError, match=r"not a directory"):
        preflight.check_state(tmp_path / "lab")


def test_a_place_that_the_labs_users_cannot_reach_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(preflight, "_LONGEST_STATE", 500)
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(LabError, match=r"is closed to others"):
        preflight.check_state(closed / "lab")


def test_a_path_too_long_for_a_socket_is_refused():
    with pytest.raises(LabError, match=r"characters"):
        preflight.check_state(Path("/srv") / ("x" * 70))


@pytest.mark.parametrize("name", ["a lab", 'a"lab', "a#b", "a\nb", "lab%d"])
def test_a_path_with_signs_that_mean_something_elsewhere_is_refused(name):
    with pytest.raises(LabError, match=r"holds characters"):
        preflight.check_state(Path("/srv") / name)


def test_the_release_is_the_projects():
    assert preflight.release(SOURCE)[0].isdigit()
