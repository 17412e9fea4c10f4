import pytest

from gpulab_hub.agent import snapshot
from gpulab_hub.agent.snapshot import NoSnapshot
from gpulab_spawner.placement.inventory import Inventory, SnapshotUnreadable, dump


def test_what_is_written_is_read_and_nothing_else_stays(tmp_path):
    path = tmp_path / "agent" / "snapshot.json"
    for taken_at in (1.0, 2.0):
        snapshot.write(path, dump(Inventory(taken_at)))
        assert snapshot.read(path) == Inventory(taken_at)
    assert [p.name for p in path.parent.iterdir()] == ["snapshot.json"]


def test_a_reader_with_the_old_file_open_is_not_disturbed(tmp_path):
    path = tmp_path / "snapshot.json"
    snapshot.write(path, b"old")
    with path.open("rb") as file:
        snapshot.write(path, b"new, and longer")
        assert file.read() == b"old"


def test_no_snapshot_says_what_to_start(tmp_path):
    with pytest.raises(NoSnapshot, match=r"there is none yet.*Start the agent"):
        snapshot.read(tmp_path / "snapshot.json")


def test_a_broken_snapshot_is_refused(tmp_path):
    (tmp_path / "snapshot.json").write_text("{")
    with pytest.raises(SnapshotUnreadable):
        snapshot.read(tmp_path / "snapshot.json")
