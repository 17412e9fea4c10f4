"""The lock of images/base: everything is named with its hashes, and by nobody's mirror."""

import re
from pathlib import Path

from gpulab_server import lean

BASE = Path(__file__).parents[2] / "images" / "base"
LOCK = (BASE / "requirements.txt").read_text()


def entries():
    return [block.replace("\\\n", " ") for block in re.split(r"\n(?=\S)", LOCK) if not block.startswith("#")]


def test_every_package_is_pinned_with_hashes():
    assert len(entries()) > 50
    for entry in entries():
        assert re.match(r"[a-z0-9.-]+==\S+", entry), entry
        assert "--hash=sha256:" in entry, entry


def test_nothing_of_the_machine_that_made_it_is_in_it():
    assert not re.search(
        r"https?://|file:|--index-url|--extra-index-url|--find-links|--trusted-host| @ ", LOCK
    )


def test_everything_that_is_asked_for_is_locked():
    wanted = re.findall(r"^[a-z][a-z0-9-]*", (BASE / "requirements.in").read_text(), re.MULTILINE)
    assert {"jupyterhub", "jupyterlab", "ipykernel", "nvidia-ml-py", "pip"} <= set(wanted)
    for name in wanted:
        assert f"\n{name}==" in LOCK


def test_the_image_holds_the_jupyterhub_that_the_lean_start_was_checked_with():
    assert f"\njupyterhub=={lean.PINNED} " in LOCK


def test_no_framework_is_in_the_base():
    assert not re.search(r"^(torch|tensorflow|jax)\b", LOCK, re.MULTILINE)
