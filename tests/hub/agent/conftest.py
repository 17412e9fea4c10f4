"""Fixtures of the agent.

paths      an empty lab
simulated  makes the lab's machine a simulated one: simulated(name) -> SimulatedMachine
"""

import pytest

from gpulab_hub.paths import LabPaths
from gpulab_hub.simulate import stage


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("library")


@pytest.fixture
def paths(tmp_path):
    return LabPaths(tmp_path)


@pytest.fixture
def simulated(paths, cache):
    def simulate(name):
        return stage.prepare(name, paths.simulate, with_nodes=False, cache=cache)

    return simulate
