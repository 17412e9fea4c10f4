import errno
import os
import stat
from pathlib import Path

import pytest

from gpulab_server import runtime
from gpulab_server.runtime import (
    find_runtime,
    make_directories,
    on_network,
    private_directory,
    server_environment,
)
from gpulab_server.start import Refused

ME = os.getuid()


@pytest.fixture
def full(monkeypatch):
    """Make every write to a directory named `home` fail as on a full disk."""
    real = runtime.TemporaryFile

    def no_space(*args, dir, **kwargs):  # noqa: A002
        if dir.name == "home":
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*args, dir=dir, **kwargs)

    monkeypatch.setattr(runtime, "TemporaryFile", no_space)


def test_the_runtime_directory_is_its_owners_alone(tmp_path):
    found = find_runtime(ME, (tmp_path / "session",))
    assert stat.S_IMODE(found.stat().st_mode) == 0o700


def test_one_that_is_left_from_before_is_taken_and_closed_to_others(tmp_path):
    (tmp_path / "session").mkdir(mode=0o777)
    assert stat.S_IMODE(find_runtime(ME, (tmp_path / "session",)).stat().st_mode) == 0o700


def test_somebody_elses_directory_or_a_link_is_not_taken(tmp_path):
    (tmp_path / "aim").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "aim")
    assert not private_directory(tmp_path / "link", ME)
    assert not private_directory(tmp_path / "aim", ME + 1)
    assert find_runtime(ME, (tmp_path / "link", tmp_path / "second")) == tmp_path / "second"


def test_no_place_at_all_is_refused_with_the_places(tmp_path):
    with pytest.raises(Refused, match=r"neither .*gone/a nor .*lost/a can be written by uid"):
        find_runtime(ME, (tmp_path / "gone" / "a", tmp_path / "lost" / "a"))


def test_a_sound_home_keeps_its_databases(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    more = server_environment({"PATH": "/a:/b"}, tmp_path, home, "")
    assert more["JUPYTER_RUNTIME_DIR"] == f"{tmp_path}/jupyter"
    assert more["XDG_RUNTIME_DIR"] == str(tmp_path)
    assert more["GPULAB_PATH"] == "/a:/b"
    assert (more["HOME"], more["USER"], more["SHELL"]) == (str(home), "lab", "/bin/bash")
    assert not {"GPULAB_DATABASES", "GPULAB_HOME_FULL", "IPYTHONDIR", "TMPDIR"} & set(more)


def test_what_the_container_sets_stays(tmp_path):
    more = server_environment({"USER": "ada", "SHELL": "/bin/zsh", "HOME": "/h"}, tmp_path, tmp_path, "")
    assert not {"USER", "SHELL", "HOME"} & set(more)


def test_a_full_home_moves_what_jupyter_must_write_to_the_runtime_directory(tmp_path, full):
    (tmp_path / "home").mkdir()
    more = server_environment({}, tmp_path, tmp_path / "home", "")
    make_directories(more)
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR"):
        assert Path(more[name]).is_dir()
        assert not more[name].startswith(f"{tmp_path}/home")
    assert more["GPULAB_DATABASES"] == str(tmp_path)
    assert more["GPULAB_HOME_FULL"] == "1"


def test_a_home_that_is_missing_counts_as_full(tmp_path):
    assert "GPULAB_HOME_FULL" in server_environment({}, tmp_path, tmp_path / "gone", "")


@pytest.mark.parametrize(
    ("name", "variable"), [(".jupyter", "JUPYTER_CONFIG_DIR"), (".ipython", "IPYTHONDIR")]
)
@pytest.mark.parametrize("what", ["a link to something that is not there", "not a directory"])
def test_what_lies_in_the_place_of_a_needed_directory_keeps_nobody_out(tmp_path, name, variable, what):
    home = tmp_path / "home"
    home.mkdir()
    if what == "not a directory":
        (home / name).touch()
    else:
        (home / name).symlink_to("/proc/nowhere/x")
    more = server_environment({}, tmp_path, home, "")
    make_directories(more)
    assert Path(more[variable]).is_dir()
    assert not more[variable].startswith(str(home))
    assert len({"JUPYTER_CONFIG_DIR", "IPYTHONDIR"} & set(more)) == 1
    assert "GPULAB_HOME_FULL" not in more
    assert more["GPULAB_NOTICES"].startswith(f"{home / name} is {what}. This server started without it")


def test_a_link_to_a_directory_is_one(tmp_path):
    (tmp_path / "aim").mkdir()
    (tmp_path / ".jupyter").symlink_to(tmp_path / "aim")
    more = server_environment({}, tmp_path, tmp_path, "")
    assert not {"JUPYTER_CONFIG_DIR", "GPULAB_NOTICES"} & set(more)


def test_a_full_home_is_told_in_words(tmp_path, full):
    (tmp_path / "home").mkdir()
    (told,) = server_environment({}, tmp_path, tmp_path / "home", "")["GPULAB_NOTICES"].splitlines()
    assert told.startswith(f"{tmp_path}/home is full or cannot be written.")


def test_a_temporary_directory_that_takes_no_writes_is_replaced(tmp_path):
    more = server_environment({"TMPDIR": f"{tmp_path}/gone"}, tmp_path, tmp_path, "")
    make_directories(more)
    assert Path(more["TMPDIR"]).is_dir()


def test_on_nfs_only_the_databases_move(tmp_path):
    more = server_environment({}, tmp_path, tmp_path, f"server:/x {tmp_path} nfs4 rw 0 0\n")
    assert "GPULAB_DATABASES" in more
    assert "GPULAB_HOME_FULL" not in more


MOUNTS = """overlay / overlay rw 0 0
server:/homes /home/lab nfs4 rw 0 0
tmpfs /home/lab/fast tmpfs rw 0 0
server:/odd /mnt/with\\040space nfs rw 0 0
broken
"""


@pytest.mark.parametrize(
    ("path", "network"),
    [
        ("/home/lab", True),
        ("/home/lab/x", True),
        ("/home/lab/fast/x", False),
        ("/home/labour", False),
        ("/mnt/with space/x", True),
        ("/", False),
    ],
)
def test_the_deepest_mount_decides_whether_it_is_a_network_file_system(path, network):
    assert on_network(Path(path), MOUNTS) is network
