"""Against a real supervisord, with programs that do nothing."""

import sys
import tempfile
import time
from pathlib import Path

import pytest
from supervisor.options import ServerOptions

from gpulab_hub.deploy.machine import ThisMachine
from gpulab_hub.deploy.processes import Process
from gpulab_hub.deploy.supervisord import Supervisord, SupervisorUnavailable, render
from gpulab_hub.paths import LabPaths

SLEEP = (sys.executable, "-c", "import time; time.sleep(600)")


@pytest.fixture
def short():
    """A directory whose path is short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="lab-") as directory:
        yield Path(directory)


@pytest.fixture
def keeper(short):
    paths = LabPaths(short)
    for directory in (paths.run, paths.log):
        directory.mkdir()
    paths.venv.symlink_to(Path(sys.executable).parents[1])
    made = Supervisord(paths, ThisMachine())
    yield made
    made.stop()


def process(name, argv=SLEEP, **environment):
    # A signal between fork and exec is lost, and these tests stop what has just begun: a short wait then.
    return Process(name, "does nothing", argv, None, environment, stop_seconds=1)


def up(keeper, name):
    return next((s for s in keeper.states() if s.name == name), None)


def test_a_lab_starts_is_left_alone_changes_and_stops(keeper):
    hub, agent = process("hub"), process("agent")
    assert keeper.apply((agent, hub)) == "started under supervisord"
    assert {s.name for s in keeper.states()} == {"agent", "hub"}
    first = {s.name: s.pid for s in keeper.states()}
    assert keeper.apply((agent, hub)) == "running, nothing changed"
    assert keeper.apply((agent, process("hub", STAMP="new"))) == "restarted: hub"
    assert up(keeper, "agent").pid == first["agent"] is not None
    assert up(keeper, "hub").pid != first["hub"]
    keeper.stop()
    assert not keeper.answers()
    keeper.stop()
    with pytest.raises(SupervisorUnavailable, match=r"does not answer at .* Start the lab with deploy/up"):
        keeper.states()


def test_a_program_that_is_not_there_says_why(keeper):
    keeper.apply((process("hub", ("/no/such/program",)),))
    state = up(keeper, "hub")
    assert not state.running
    assert "no/such/program" in state.words


def test_only_its_owner_reads_the_configuration_and_the_socket(keeper, short):
    keeper.apply((process("hub"),))
    assert (short / "run/supervisord.conf").stat().st_mode & 0o777 == 0o600
    assert (short / "run/supervisor.sock").stat().st_mode & 0o777 == 0o700


def test_odd_characters_reach_the_program_as_they_are(keeper, short):
    odd = "a b 100% 'r', x"
    script = (
        f"import os, sys, time; open(r'{short}/seen', 'w').write(os.environ['ODD'] + '|' + sys.argv[1]); "
    )
    keeper.apply((process("hub", (sys.executable, "-c", script + "time.sleep(600)", odd), ODD=odd),))
    wait_for(lambda: (short / "seen").exists() and (short / "seen").read_text())
    assert (short / "seen").read_text() == f"{odd}|{odd}"


def test_supervisord_reads_every_line_that_is_written(short):
    conf = short / "supervisord.conf"
    conf.write_text(render(LabPaths(short), (process("hub"),), 1024))
    for name in ("log", "run"):
        (short / name).mkdir()
    options = ServerOptions()
    options.realize(["-c", str(conf)])
    (group,) = options.process_group_configs
    (program,) = group.process_configs
    assert (program.name, program.autorestart.__name__) == ("hub", "RestartUnconditionally")
    assert program.stdout_logfile == str(short / "log/hub.log")


def wait_for(condition):
    for _ in range(200):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("it did not come about within 10 s")
