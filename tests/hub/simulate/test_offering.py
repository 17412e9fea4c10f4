import json
import os
from pathlib import Path

import pytest

from gpulab_hub.simulate import offering, stage
from gpulab_hub.simulate.injection import cdi_names
from gpulab_hub.simulate.live import Live
from gpulab_hub.simulate.offering import CannotOffer
from gpulab_spawner.errors import ConfigError

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="device nodes need root")


@pytest.fixture
def machine(tmp_path, cache):
    return stage.prepare("h100-mig", tmp_path / "m", cache=cache)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "etc/cdi/gpulab-0123.json"


def names(path):
    return [device["name"] for device in json.loads(path.read_text())["devices"]]


def test_every_device_is_offered_and_the_file_is_for_all_to_read(machine, path):
    assert offering.offer(machine, path)
    assert names(path) == list(cdi_names(machine))
    assert len(names(path)) == 8
    assert path.stat().st_mode & 0o777 == 0o644
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_a_new_layout_is_offered_at_once(machine, path):
    offering.offer(machine, path)
    before = names(path)
    Live(machine).set_layout(1, ["3g.40gb@4", "1g.10gb@0"])
    assert len(names(path)) == 3
    assert set(names(path)) & set(before) == {before[0]}
    big = json.loads(path.read_text())["devices"][1]["containerEdits"]["deviceNodes"]
    assert all(Path(node["hostPath"]).is_char_device() for node in big)


def test_a_machine_that_is_not_offered_stays_so(machine, path):
    Live(machine).set_layout(1, None)
    assert offering.renew(machine) is None
    assert not path.exists()


def test_without_a_device_there_is_no_file_until_there_is_one_again(tmp_path, cache, path):
    described = tmp_path / "one.yaml"
    described.write_text("gpus: [{model: h100-80}]")
    machine = stage.prepare(str(described), tmp_path / "m", cache=cache)
    offering.offer(machine, path)
    Live(machine).set_layout(0, [])
    assert not path.exists()
    Live(machine).set_layout(0, ["7g.80gb"])
    assert len(names(path)) == 1


def test_another_place_takes_the_first_ones_place(machine, path):
    offering.offer(machine, path)
    other = path.with_name("gpulab-4567.json")
    offering.offer(machine, other)
    assert (path.exists(), other.exists()) == (False, True)
    offering.withdraw(machine)
    offering.withdraw(machine)
    assert not other.exists()


def test_a_machine_without_nodes_is_not_offered(prepared, path):
    with pytest.raises(ConfigError, match="has no device nodes"):
        offering.offer(prepared("2xh100"), path)
    assert not path.exists()


def test_a_place_that_cannot_be_written_is_told(machine, tmp_path):
    (tmp_path / "etc").write_text("a file")
    with pytest.raises(CannotOffer, match=r"cannot be written: .*Run it as root"):
        offering.offer(machine, tmp_path / "etc/gpulab-0123.json")
