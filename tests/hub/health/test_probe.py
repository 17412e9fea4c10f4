"""Whether servers still reach their GPUs: what the program says, and what is made of it."""

import errno
import os
import subprocess
import sys

import pytest

from gpulab_hub.health.probe import COMMAND, LOST, NO_NODE, PROGRAM, WELL, Probe
from gpulab_hub.ledger import Ledger
from gpulab_spawner.errors import EngineUnavailable, LedgerUnavailable


class Asked:
    """A probe over a world; `says` is what containers answer."""

    def __init__(self, world, watch):
        self.world, self.watch, self.says = world, watch, WELL
        world.docker.executed = self.answer
        self.asked = []
        self.it = Probe(Ledger(world.lab.engine), world.docker, "node", watch.it.container)

    def answer(self, container, command):
        assert command == COMMAND
        self.asked.append(container)
        return self.says

    def once(self, says):
        self.says = says
        self.it.once()


@pytest.fixture
def probe(world, watch):
    return Asked(world, watch)


def test_a_server_that_lost_its_gpu_is_told_until_it_has_it_again(probe, world, watch):
    lease, container = world.up("ada")
    world.up("li", "none")
    probe.once(WELL)
    assert watch.trouble(lease) is None
    probe.once(LOST)
    assert watch.trouble(lease).startswith("your server has lost its GPU")
    assert set(probe.it.lost) == {lease.id}
    assert probe.asked == [container.id] * 2
    probe.once(WELL)
    assert watch.trouble(lease) is None
    assert set(probe.it.lost) == set()


@pytest.mark.parametrize(
    "says",
    [None, NO_NODE, 1, 126, 127, 142],
    ids=["gone", "no nodes", "crashed", "not to be run", "no program", "timed out"],
)
def test_what_says_nothing_changes_nothing(probe, world, watch, says):
    lease, _ = world.up("ada")
    probe.once(LOST)
    words = watch.trouble(lease)
    assert words
    probe.once(says)
    assert watch.trouble(lease) == words


def test_only_a_server_that_runs_is_asked(probe, world):
    lease = world.lab.open("ada")
    probe.once(LOST)
    assert probe.asked == []
    world.lab.close(lease)


def test_a_container_that_hangs_is_left_alone_for_a_while(probe, world, watch):
    world.up("ada")
    tries = []

    def silent(operation, container):
        tries.append(operation)
        raise EngineUnavailable("Docker does not answer: read timed out")

    world.docker.before = silent
    for _ in range(23):
        probe.once(WELL)
    assert tries == ["execute"] * 3


def test_after_a_restart_of_the_service_what_is_well_again_is_cleared(probe, world, watch):
    lease, _ = world.up("ada")
    probe.once(LOST)
    again = Asked(world, watch)
    again.once(WELL)
    assert watch.trouble(lease) is None


def test_a_ledger_that_is_silent_ends_nothing(probe, world, monkeypatch):
    world.up("ada")

    def silent(lease, lost):
        raise LedgerUnavailable("The lab's database does not answer.")

    monkeypatch.setattr(probe.it, "_tell", silent)
    probe.once(LOST)
    assert set(probe.it.lost) == set()


# The program itself, with opens that fail as the kernel lets them


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ({}, NO_NODE),
        ({"nvidia0": None}, WELL),
        ({"nvidia0": errno.ENXIO}, WELL),
        ({"nvidia0": errno.EACCES}, WELL),
        ({"nvidia0": errno.EIO, "nvidia1": errno.EPERM}, LOST),
        ({"nvidia3": errno.EPERM}, LOST),
    ],
)
def test_only_the_device_rules_of_the_container_are_a_loss(nodes, said, tmp_path):
    for name in nodes:
        (tmp_path / name).touch()
    failing = {str(tmp_path / name): code for name, code in nodes.items() if code}
    patched = (
        "import os\n"
        f"failing = {failing!r}\n"
        "opened = os.open\n"
        "def failing_open(path, *more):\n"
        "    if path in failing: raise OSError(failing[path], 'injected', path)\n"
        "    return opened(path, *more)\n"
        "os.open = failing_open\n"
    ) + PROGRAM.replace("/dev/nvidia", f"{tmp_path}/nvidia")
    done = subprocess.run([sys.executable, "-I", "-S", "-c", patched], check=False)
    assert done.returncode == said


def test_the_program_needs_no_package_and_no_environment():
    done = subprocess.run([sys.executable, *COMMAND[1:]], env={}, check=False, cwd=os.sep)
    assert done.returncode in (NO_NODE, WELL)
