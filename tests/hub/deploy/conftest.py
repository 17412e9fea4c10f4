import pytest

from gpulab_hub.deploy.record import LabRecord
from gpulab_hub.paths import LabPaths


@pytest.fixture
def paths(tmp_path):
    return LabPaths(tmp_path / "lab")


@pytest.fixture
def record():
    return LabRecord(
        hub_id="0123456789ab",
        release="0.1.0",
        listen="127.0.0.1",
        port=8000,
        proxy_api_port=8001,
        hub_port=8081,
        network="gpulab-0123456789ab",
        gateway="172.31.0.1",
        engine="unix:///var/run/docker.sock",
        supervisor="supervisord",
        image="gpulab/base:1",
    )
