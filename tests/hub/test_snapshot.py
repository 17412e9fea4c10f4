from dataclasses import replace

import pytest
from tests.fakes.lab import machine

from gpulab_hub.snapshot import SnapshotFile
from gpulab_spawner.placement.inventory import SnapshotUnreadable, dump


def put(path, content):
    """Replace a file as the agent does, by rename."""
    new = path.with_suffix(".new")
    new.write_bytes(content)
    new.replace(path)


def test_each_version_of_the_file_is_parsed_once(tmp_path):
    path = tmp_path / "snapshot.json"
    file = SnapshotFile(path)
    assert file.read() is None
    put(path, dump(machine()))
    first = file.read()
    assert first == machine()
    assert file.read() is first
    put(path, dump(replace(machine(), taken_at=9.0)))
    assert file.read().taken_at == 9.0


def test_a_broken_snapshot_is_refused_and_a_later_good_one_read(tmp_path):
    path = tmp_path / "snapshot.json"
    put(path, b"{")
    file = SnapshotFile(path)
    with pytest.raises(SnapshotUnreadable, match="cannot be read"):
        file.read()
    put(path, dump(machine()))
    assert file.read() == machine()


def test_a_snapshot_that_is_no_file_is_refused_by_name(tmp_path):
    with pytest.raises(SnapshotUnreadable, match=r"cannot be read: Is a directory"):
        SnapshotFile(tmp_path).read()
