"""Fixtures of the spawner's tests.

fake        a Docker Engine of memory on a unix socket (tests/fakes/docker_engine.py)
engine      our edge to it, with a time-out of one second
"""

import docker
import pytest
from tests.fakes.docker_engine import fake_engine

from gpulab_spawner.engine import Engine


@pytest.fixture
def fake(tmp_path_factory):
    with fake_engine(tmp_path_factory.mktemp("engine")) as running:
        yield running


@pytest.fixture
def engine(fake):
    client = docker.APIClient(base_url=fake.url, version="1.41", timeout=1)
    yield Engine(client, sleep=lambda seconds: None, clock=lambda: 0.0)
    client.close()
