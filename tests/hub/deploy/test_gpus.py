import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab_hub.deploy.gpus import DEFAULT_MACHINE, decide, nvidia_gpus
from gpulab_hub.deploy.record import LabRecord
from gpulab_spawner.errors import ConfigError

LAB = LabRecord("0" * 12, "0.1.0", "127.0.0.1", 8000, 8001, 8081, "n", "172.31.0.1", "unix:///s", "systemd")
SIMULATED = dataclasses.replace(LAB, simulate="2xh100")


def device(sys, name, vendor, kind):
    directory = sys / "bus/pci/devices" / name
    directory.mkdir(parents=True)
    (directory / "vendor").write_text(vendor + "\n")
    (directory / "class").write_text(kind + "\n")


def test_gpus_are_nvidia_devices_of_the_display_class(tmp_path):
    device(tmp_path, "0000:1b:00.0", "0x10de", "0x030200")
    device(tmp_path, "0000:1c:00.0", "0x10de", "0x030000")
    device(tmp_path, "0000:1d:00.0", "0x10de", "0x068000")  # an NVSwitch
    device(tmp_path, "0000:1d:00.1", "0x10de", "0x040300")  # a card's sound
    device(tmp_path, "0000:02:00.0", "0x1a03", "0x030000")  # another maker's
    (tmp_path / "bus/pci/devices/0000:1e:00.0").mkdir()  # going away
    assert nvidia_gpus(tmp_path) == ("0000:1b:00.0", "0000:1c:00.0")
    assert nvidia_gpus(tmp_path / "none") == ()


@pytest.mark.parametrize(
    ("flag", "record", "cards", "yes", "terminal", "simulate", "ask"),
    [
        # First up: a card is never simulated away, whatever was answered.
        (None, None, 2, True, True, None, False),
        ("h100-mig", None, 2, False, False, "h100-mig", False),
        # First up without a card: a yes, a question, or nothing.
        (None, None, 0, True, False, DEFAULT_MACHINE, False),
        (None, None, 0, False, True, None, True),
        (None, None, 0, False, False, None, False),
        # Later: what was chosen stays.
        (None, SIMULATED, 0, False, False, "2xh100", False),
        (None, SIMULATED, 4, False, True, "2xh100", False),
        ("2xh100", SIMULATED, 0, False, False, "2xh100", False),
        (None, LAB, 0, True, True, None, False),
        ("2xh100", LAB, 0, False, False, "2xh100", False),
    ],
)
def test_what_the_lab_works_with(flag, record, cards, yes, terminal, simulate, ask):
    choice = decide(flag, record, cards, yes=yes, terminal=terminal)
    assert (choice.simulate, choice.ask) == (simulate, ask)
    assert ("SIMULATED" in choice.words) == (simulate is not None)


def test_a_simulated_machine_is_not_swapped_for_another():
    with pytest.raises(ConfigError, match=r"this lab simulates 2xh100, not h100-mig"):
        decide("h100-mig", SIMULATED, 0, yes=True, terminal=True)


@given(st.integers(1, 16), st.booleans(), st.booleans(), st.sampled_from([None, LAB]))
def test_without_the_flag_a_machine_with_a_card_never_simulates(cards, yes, terminal, record):
    choice = decide(None, record, cards, yes=yes, terminal=terminal)
    assert choice.simulate is None
    assert not choice.ask
