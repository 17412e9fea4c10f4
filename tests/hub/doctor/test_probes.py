from pathlib import Path

import pytest

from gpulab_hub.doctor import probes
from gpulab_spawner.errors import EngineUnavailable


class SeesTheSameFiles:
    """An engine whose binds are the files that we see; commands end well unless `code` says otherwise."""

    def __init__(self, code=0):
        self.code = code
        self.configs = []

    def run(self, config, name):
        self.configs.append(config)
        mounts = config["HostConfig"].get("Mounts")
        if not mounts:
            return self.code, ""
        path = config["Entrypoint"][1].replace(probes.INSIDE, mounts[0]["Source"])
        return self.code, Path(path).read_text()


class SeesOtherFiles:
    def run(self, config, name):
        return 1, "cat: no such file"


class RefusesToStart:
    def run(self, config, name):
        raise EngineUnavailable("Docker answered 500: operation not permitted")


def test_a_container_that_sees_the_nonce_is_well_and_nothing_stays(tmp_path):
    assert probes.storage(SeesTheSameFiles(), "gpulab/base:1", "0123", tmp_path) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        (SeesOtherFiles(), "has another directory there"),
        (RefusesToStart(), "does not start: Docker answered 500"),
    ],
)
def test_an_engine_with_other_files_is_found_and_nothing_stays(tmp_path, engine, words):
    assert words in probes.storage(engine, "gpulab/base:1", "0123", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_storage_root_that_is_missing_is_told(tmp_path):
    assert "cannot be written" in probes.storage(SeesTheSameFiles(), "i", "0123", tmp_path / "none")


@pytest.mark.parametrize(
    ("engine", "able"),
    [(SeesTheSameFiles(), True), (SeesTheSameFiles(code=1), False), (RefusesToStart(), False)],
)
def test_memlock_is_lifted_where_such_a_container_starts(engine, able):
    assert probes.memlock(engine, "gpulab/base:1", "0123") == able


def test_a_probe_has_no_network_no_rights_and_no_gpu():
    made = probes.arguments("gpulab/base:1", "0123", ["true"])
    assert made == {
        "Image": "gpulab/base:1",
        "Entrypoint": ["true"],
        "Cmd": [],
        "User": "65534:65534",
        "Labels": {"gpulab.doctor": "0123"},
        "NetworkDisabled": True,
        "Env": ["NVIDIA_VISIBLE_DEVICES=void"],
        "HostConfig": {
            "NetworkMode": "none",
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges"],
            "PidsLimit": 16,
            "Memory": 67108864,
            "ReadonlyRootfs": True,
        },
    }
