import pytest
from tests.fakes.machine import CommandFails, FakeMachine

from gpulab_hub.deploy import users
from gpulab_spawner.errors import LabError


def test_the_three_users_are_made_once():
    machine = FakeMachine()
    assert users.ensure(machine, 105) == "gpulab, gpulab-proxy, gpulab-agent made"
    assert {"gpulab", "gpulab-proxy", "gpulab-agent"} <= machine.users
    assert "usermod -aG docker gpulab" in machine.commands
    assert "usermod -aG video gpulab-agent" in machine.commands
    machine.commands.clear()
    assert users.ensure(machine, 105) == "gpulab, gpulab-proxy, gpulab-agent"
    assert not any(command.startswith("useradd") for command in machine.commands)


def test_only_the_hubs_user_reaches_docker():
    machine = FakeMachine()
    users.ensure(machine, 105)
    assert [c for c in machine.commands if "docker" in c] == ["usermod -aG docker gpulab"]


def test_a_socket_of_a_group_that_this_machine_does_not_know_gets_one():
    machine = FakeMachine()
    users.ensure(machine, 987)
    assert machine.groups[987] == "gpulab-engine"
    assert "usermod -aG gpulab-engine gpulab" in machine.commands


def test_an_engine_without_a_socket_needs_no_group():
    machine = FakeMachine()
    users.ensure(machine, users.socket_group("tcp://127.0.0.1:2375"))
    assert not any(command.endswith(" gpulab") and "usermod" in command for command in machine.commands)


def test_a_machine_that_makes_no_users_is_worded():
    with pytest.raises(LabError, match=r"could not be made.*/etc/passwd is read-only.*Make gpulab"):
        users.ensure(FakeMachine(CommandFails("useradd", "/etc/passwd is read-only")), 105)
