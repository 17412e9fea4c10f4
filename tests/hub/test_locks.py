import gc
import os

import pytest

from gpulab_hub import locks
from gpulab_spawner.errors import LabError


def test_a_second_holder_is_refused_with_the_first_ones_pid(tmp_path):
    path = tmp_path / "hub.lock"
    with locks.hold(path, "hub"):
        assert locks.held(path)
        with pytest.raises(
            locks.AlreadyRunning, match=rf"The hub of this lab runs already \(process {os.getpid()}\)"
        ):
            locks.hold(path, "hub")
    assert not locks.held(path)
    locks.hold(path, "hub").close()


def test_a_lock_that_nobody_refers_to_is_held_all_the_same(tmp_path):
    locks.hold(tmp_path / "hub.lock", "hub")
    gc.collect()
    assert locks.held(tmp_path / "hub.lock")
    locks._kept.pop().close()


def test_a_lock_without_its_directory_is_worded(tmp_path):
    with pytest.raises(LabError, match="cannot be opened: No such file"):
        locks.hold(tmp_path / "no" / "hub.lock", "hub")
    assert not locks.held(tmp_path / "no" / "hub.lock")
