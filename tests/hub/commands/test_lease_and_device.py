"""`gpulab lease end`, `gpulab device cordon|uncordon`, and what `gpulab leases` says of quarantine."""

import pytest
from click.testing import CliRunner
from tests.fakes.lab import NOON, Lab

from gpulab_hub import quarantine
from gpulab_hub.cli import main
from gpulab_hub.database import lab_database
from gpulab_hub.ledger import Ledger
from gpulab_hub.paths import LabPaths
from gpulab_hub.standing import Quarantined
from gpulab_spawner.placement.inventory import dump

HELD = Quarantined("d" * 64, "gpulab-x", None, None, "", ("GPU-1",), "its lease was closed")


@pytest.fixture
def lab(tmp_path):
    paths = LabPaths(tmp_path)
    paths.database.parent.mkdir()
    paths.config.write_text("")
    assert CliRunner().invoke(main, ["db", "upgrade", "--state", str(tmp_path)]).exit_code == 0
    engine = lab_database(paths)
    made = Lab(engine)
    paths.snapshot.parent.mkdir()
    paths.snapshot.write_bytes(dump(made.inventory))
    made.gpulab = lambda *words: CliRunner().invoke(main, [*words, "--state", str(tmp_path)])
    made.standing = lambda: Ledger(engine).standing()
    yield made
    engine.dispose()


def test_a_lease_is_asked_to_end_by_how_its_id_begins(lab):
    lease = lab.open("ada")
    done = lab.gpulab("lease", "end", lease.id[:8], "--reason", "fan")
    assert done.output.startswith(f"Lease {lease.id[:8]} of ada ends")
    assert lab.standing().leases[lease.id].state == "closing"


@pytest.mark.parametrize("name", ["zzzz", "", "abc"])
def test_what_names_nothing_or_too_little_ends_nothing(lab, name):
    lease = lab.open("ada")
    done = lab.gpulab("lease", "end", name)
    assert done.exit_code == 1
    assert "`gpulab leases` lists them" in done.output
    assert lab.standing().leases[lease.id].state == "granted"


def test_a_container_in_quarantine_is_listed_and_asked_to_end(lab):
    with Ledger(lab.engine).turn() as turn:
        quarantine.hold(turn, HELD, NOON)
    assert "its lease was closed" in lab.gpulab("leases").output
    assert lab.gpulab("lease", "end", "d" * 12).output.startswith("The container gpulab-x ends")
    assert lab.standing().quarantined[HELD.container_id].end_asked_by
    assert "its lease was closed, ending" in lab.gpulab("leases").output


def test_a_device_is_withheld_and_given_back(lab):
    assert lab.gpulab("device", "cordon", "GPU-0", "--reason", "fan noise").exit_code == 0
    assert lab.standing().cordons == {"GPU-0": "fan noise"}
    assert lab.admission.view("li").withheld["GPU-0"] == "cordoned: fan noise"
    assert lab.gpulab("device", "uncordon", "GPU-0").exit_code == 0
    assert lab.standing().cordons == {}


def test_a_device_that_is_not_there_or_not_clear_is_refused(lab):
    for words in (
        ("cordon", "GPU-9", "--reason", "x"),
        ("cordon", "GPU-", "--reason", "x"),
        ("uncordon", "GPU-0"),
    ):
        done = lab.gpulab("device", *words)
        assert done.exit_code == 1
        assert "`gpulab devices` lists" in done.output
    assert lab.standing().cordons == {}
