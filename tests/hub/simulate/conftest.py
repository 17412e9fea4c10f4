"""Fixtures of the simulated machines.

cache      directory of the compiled library, one for the session
prepared   makes a machine without device nodes: prepared(name) -> SimulatedMachine
"""

import pytest

from gpulab_hub.simulate import stage


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("library")


@pytest.fixture
def prepared(tmp_path, cache):
    def prepare(name):
        return stage.prepare(name, tmp_path / "machine", with_nodes=False, cache=cache)

    return prepare
