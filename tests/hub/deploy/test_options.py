import os
import subprocess
from pathlib import Path

import pytest

from gpulab_hub.deploy import options

SOURCE = Path(__file__).parents[3]


def test_flags_are_read(tmp_path):
    found = options.parse(
        ["--simulate", "2xh100", "--state", str(tmp_path), "--port=8123", "--listen", "0.0.0.0", "--yes"],
        SOURCE,
    )
    assert found == options.Options(tmp_path, SOURCE, "2xh100", 8123, "0.0.0.0", True)


def test_nothing_is_assumed_of_a_flag_that_is_not_given():
    found = options.parse([], SOURCE)
    assert (found.simulate, found.port, found.listen, found.yes) == (None, None, None, False)


@pytest.mark.parametrize(
    "argv",
    [
        ["--port", "0"],
        ["--port", "65536"],
        ["--port", "-1"],
        ["--port", "x"],
        ["--por", "1"],
        ["more"],
        ["--yes=1"],
    ],
)
def test_wrong_usage_ends_with_2(argv, capsys):
    with pytest.raises(SystemExit) as ended:
        options.parse(argv, SOURCE)
    assert ended.value.code == 2
    assert "usage: deploy/up" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--prot", "1"], "--prot is not a flag"),
        (["--port"], "--port needs a value"),
        (["--state="], "--state needs a value"),
        (["lab"], "lab is not a flag"),
    ],
)
def test_the_command_refuses_wrong_usage_before_it_touches_anything(argv, words, tmp_path):
    done = subprocess.run(
        [SOURCE / "deploy/up", *argv],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "usage: deploy/up" in done.stderr
    assert words in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_help_says_every_flag():
    done = subprocess.run([SOURCE / "deploy/up", "--help"], capture_output=True, text=True)
    assert done.returncode == 0
    for flag in ("--simulate", "--state", "--port", "--listen", "--yes"):
        assert flag in done.stdout
