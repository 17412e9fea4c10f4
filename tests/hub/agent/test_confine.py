import os
import subprocess
import sys

import pytest

from gpulab_hub.agent import confine

needs_landlock = pytest.mark.skipif(not confine.available(), reason="this kernel has no Landlock")

TRY = """
import sys
from pathlib import Path
from gpulab_hub.agent import confine
closed, *others = map(Path, sys.argv[1:])
print(confine.close_off([closed]))
for path in (closed, *others):
    try:
        path.open("r+").close()
        print("open")
    except OSError as error:
        print(error.strerror)
print(closed.read_text())
"""


def attempt(*paths):
    words = [sys.executable, "-c", TRY, *map(str, paths)]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()


@needs_landlock
def test_the_files_that_are_named_cannot_be_opened_for_writing_and_all_others_can(tmp_path):
    for name in ("closed", "beside", "below/it"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "link").symlink_to(tmp_path / "closed")
    paths = [tmp_path / name for name in ("closed", "beside", "below/it", "link")]
    assert attempt(*paths) == ["True", "Permission denied", "open", "open", "Permission denied", "closed"]


@needs_landlock
def test_a_path_through_a_link_means_the_file_itself(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real/node").write_text("it")
    (tmp_path / "way").symlink_to(tmp_path / "real")
    assert attempt(tmp_path / "way/node", tmp_path / "real/node")[1:3] == ["Permission denied"] * 2


def test_with_nothing_to_close_nothing_is_given_up():
    assert confine.close_off([])
    os.close(os.open("/dev/null", os.O_WRONLY))


def test_a_kernel_without_it_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(confine, "_call", lambda *arguments: -1)
    assert not confine.available()
    assert not confine.close_off([tmp_path / "node"])
