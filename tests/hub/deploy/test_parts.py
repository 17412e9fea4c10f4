import json

import pytest
from sqlalchemy import Engine
from tests.fakes.machine import CommandFails, CommandMissing, FakeMachine

from gpulab_hub import migrations
from gpulab_hub.accounts import Accounts
from gpulab_hub.database import lab_database
from gpulab_hub.deploy import parts
from gpulab_hub.doctor.facts import CdiFacts, EngineFacts
from gpulab_hub.images import build as images
from gpulab_hub.images.failures import BuildFailed
from gpulab_hub.settings import Settings
from gpulab_hub.simulate import injection, offering, stage
from gpulab_spawner.errors import ConfigError, LabError

CDI = EngineFacts(version="28.5.1", cdi=CdiFacts(("/etc/cdi", "/var/run/cdi")))


@pytest.fixture
def database(paths) -> Engine:
    paths.database.parent.mkdir(parents=True)
    paths.config.write_text("")
    engine = lab_database(paths, create=True)
    migrations.upgrade(engine)
    yield engine
    engine.dispose()


def test_the_first_admin_gets_a_link_and_a_new_one_until_it_was_used(paths, database):
    first = parts.first_invite(paths, Settings(), "http://lab", 1000.0)
    assert first.name == "admin"
    assert first.url.startswith("http://lab/hub/invite#")
    second = parts.first_invite(paths, Settings(), "http://lab", 1001.0)
    assert second.url != first.url
    secret = second.url.partition("#")[2]
    Accounts(database).claim(secret, "correct horse battery", "correct horse battery", 1002.0)
    assert parts.first_invite(paths, Settings(), "http://lab", 1003.0) is None


def test_the_database_is_upgraded_by_the_labs_user_who_owns_it(paths):
    machine = FakeMachine()
    machine.says[f"{paths.venv}/bin/gpulab db upgrade"] = "The database has revision 0001 already.\n"
    assert parts.upgrade_database(machine, paths) == "The database has revision 0001 already."
    assert machine.commands[0].startswith("gpulab: ")


def test_what_the_database_says_is_passed_on(paths):
    failing = FakeMachine(CommandFails(str(paths.venv), "gpulab: the database is ahead\n"))
    with pytest.raises(LabError, match=r"^the database is ahead$"):
        parts.upgrade_database(failing, paths)


def test_a_machine_that_does_not_exist_is_refused_by_name(tmp_path):
    assert parts.machine_name("2xh100") == "2xh100"
    with pytest.raises(ConfigError, match=r"no simulated machine '2xh1000'"):
        parts.machine_name("2xh1000")
    typo = tmp_path / "ours.yaml"
    typo.write_text("gpus: [{modle: h100}]\n")
    with pytest.raises(ConfigError, match=r"ours.yaml"):
        parts.machine_name(str(typo))


@pytest.fixture
def simulated(paths, monkeypatch):
    """A simulated machine whose nodes need no root, for the names and the text are all that counts here."""
    spec = {"kind": "nvidia.com/gpu", "devices": [{"name": "GPU-a"}]}
    paths.simulate.mkdir(parents=True)
    monkeypatch.setattr(stage, "find", lambda directory: stage.SimulatedMachine("2xh100", directory, True))
    monkeypatch.setattr(injection, "cdi_names", lambda machine: ("GPU-a",))
    monkeypatch.setattr(offering, "cdi_names", lambda machine: ("GPU-a",))
    monkeypatch.setattr(offering, "cdi_spec", lambda machine: spec)
    return spec


def test_a_simulated_machines_devices_are_offered_by_cdi(paths, tmp_path, simulated):
    ours = tmp_path / "etc/cdi/gpulab-0123.json"
    for _ in range(2):
        assert parts.offer_cdi(paths, "0123", CDI, tmp_path) == str(ours)
        assert json.loads(ours.read_text()) == simulated


def test_two_labs_never_define_one_device_twice(paths, tmp_path, simulated):
    parts.offer_cdi(paths, "0123", CDI, tmp_path)
    (paths.simulate / "cdi-specification").unlink()  # as seen by the second lab
    assert parts.offer_cdi(paths, "4567", CDI, tmp_path) is None
    assert [p.name for p in (tmp_path / "etc/cdi").iterdir()] == ["gpulab-0123.json"]


@pytest.mark.usefixtures("simulated")
@pytest.mark.parametrize(
    "engine", [EngineFacts(version="28.5.1"), EngineFacts(version="20.10.24", cdi=CDI.cdi)]
)
def test_an_engine_without_cdi_gets_no_file(paths, tmp_path, engine):
    assert parts.offer_cdi(paths, "0123", engine, tmp_path) is None
    assert not (tmp_path / "etc").exists()


@pytest.mark.usefixtures("simulated")
def test_what_is_not_offered_any_more_is_removed(paths, tmp_path, monkeypatch):
    parts.offer_cdi(paths, "0123", CDI, tmp_path)
    without = EngineFacts(version="28.5.1")
    assert parts.offer_cdi(paths, "0123", without, tmp_path) is None
    assert list((tmp_path / "etc/cdi").iterdir()) == []
    parts.offer_cdi(paths, "0123", CDI, tmp_path)
    monkeypatch.setattr(offering, "cdi_names", lambda machine: ())
    assert parts.offer_cdi(paths, "0123", CDI, tmp_path) is None
    assert list((tmp_path / "etc/cdi").iterdir()) == []


def test_the_machine_of_a_lab_has_uuids_by_the_labs_id(paths, monkeypatch):
    paths.state.mkdir(parents=True, exist_ok=True)
    paths.hub_id.write_text("0123456789ab\n")
    seen = []

    def prepare(machine, directory, *, lab):
        seen.append((machine, directory, lab))
        return stage.SimulatedMachine(machine, directory, True)

    monkeypatch.setattr(stage, "prepare", prepare)
    assert parts.prepare_simulation(FakeMachine(), paths, "2xh100") == "SIMULATED: 2xh100 is ready"
    assert seen == [("2xh100", paths.simulate, "0123456789ab")]


class NeedsDebootstrap:
    """Builds once debootstrap is installed."""

    def __init__(self, machine):
        self.machine = machine

    def __call__(self, name, client, **given):
        if not any("debootstrap" in command for command in self.machine.commands):
            raise BuildFailed("No base image could be pulled.")
        return images.Built("gpulab/base:0.1.0", "sha256:1", 731_000_000, fresh=True)


def build(machine, paths, monkeypatch):
    monkeypatch.setattr(images, "build", NeedsDebootstrap(machine))
    return parts.build_image(machine, paths, None, lambda line: None)


def test_debootstrap_is_installed_where_the_image_needs_it(paths, monkeypatch):
    machine = FakeMachine(CommandMissing("debootstrap"))
    assert build(machine, paths, monkeypatch) == ("gpulab/base:0.1.0", "gpulab/base:0.1.0 (731 MB) built")


def test_an_image_that_does_not_build_is_told_as_it_is(paths, monkeypatch):
    with pytest.raises(BuildFailed, match=r"No base image"):
        build(FakeMachine(), paths, monkeypatch)
