import pytest
from tests.fakes.machine import FakeMachine

from gpulab_hub.deploy import layout
from gpulab_spawner.errors import LabError


def test_everything_of_the_plan_is_made_with_its_owner(paths):
    machine = FakeMachine()
    assert layout.ensure(machine, paths) == f"{paths.state} made, secrets made"
    for entry in layout.plan(paths):
        assert entry.path.is_file() if entry.file else entry.path.is_dir()
        assert machine.owned[entry.path] == (entry.user, entry.group or entry.user, entry.mode)


def test_a_second_run_changes_no_secret_and_no_id(paths):
    machine = FakeMachine()
    layout.ensure(machine, paths)
    before = {p: p.read_text() for p in (*paths.secrets.iterdir(), paths.hub_id)}
    assert len(before) == 7
    assert layout.ensure(machine, paths) == f"{paths.state} is set up"
    assert before == {p: p.read_text() for p in (*paths.secrets.iterdir(), paths.hub_id)}


def test_secrets_are_random_and_nobody_elses_to_read(paths):
    machine = FakeMachine()
    layout.ensure(machine, paths)
    found = list(paths.secrets.iterdir())
    assert len({p.read_text() for p in found}) == len(found) == 6
    for path in found:
        assert path.stat().st_mode & 0o777 == 0o600
        assert machine.owned[path] == ("gpulab", "gpulab", 0o600)
        assert len(bytes.fromhex(path.read_text().strip())) == 32


def test_no_other_user_may_put_files_where_root_works(paths):
    others = [e for e in layout.plan(paths) if e.user != "root" and not e.file]
    assert not any(paths.run.is_relative_to(e.path) or paths.storage.is_relative_to(e.path) for e in others)


def test_a_filesystem_that_refuses_is_worded(paths):
    paths.state.parent.joinpath("lab").write_text("a file")
    with pytest.raises(LabError, match=r"could not be set up"):
        layout.ensure(FakeMachine(), paths)


def test_a_new_file_takes_its_place_whole_and_closed(tmp_path):
    path = tmp_path / "secret"
    layout.write_new(path, "one", 0o600)
    layout.write_new(path, "two", 0o600, own=lambda new: None)
    assert path.read_text() == "two"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["secret"]
