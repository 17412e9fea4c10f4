import os
import subprocess
import sys

import pytest

from gpulab_hub.agent.lock import AlreadyRuns, only_one

HOLD = """
import sys
from pathlib import Path
from gpulab_hub.agent.lock import only_one
with only_one(Path(sys.argv[1]), "agent"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_copy_is_refused_with_the_firsts_pid(tmp_path):
    with (
        only_one(tmp_path / "run", "agent"),
        pytest.raises(AlreadyRuns, match=f"agent of this lab runs already as process {os.getpid()}"),
        only_one(tmp_path / "run", "agent"),
    ):
        pass


def test_the_lock_is_free_when_its_holder_ends_however_it_ends(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout.readline() == b"held\n"
    with pytest.raises(AlreadyRuns, match=str(holder.pid)), only_one(tmp_path, "agent"):
        pass
    holder.kill()
    holder.communicate()
    with only_one(tmp_path, "agent"):
        assert (tmp_path / "agent.lock").read_text() == f"{os.getpid()}\n"


def test_processes_of_other_kinds_and_labs_do_not_meet(tmp_path):
    with (
        only_one(tmp_path / "a", "agent"),
        only_one(tmp_path / "a", "hub"),
        only_one(tmp_path / "b", "agent"),
    ):
        pass
