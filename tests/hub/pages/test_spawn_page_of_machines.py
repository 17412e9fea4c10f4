"""The page over what placement really says of machines with 0, 2 and 64 GPUs."""

import pytest
from tests.fakes.page_lab import PROFILES
from tests.fakes.page_machines import MACHINES, NOW, gpus, offers_of, slices

from gpulab_hub.pages.spawn_page import LabNow, spawn_view
from gpulab_spawner.placement.availability import Offer
from gpulab_spawner.profiles import Defaults, read_profiles

CATALOGUE = read_profiles(PROFILES, Defaults(image="lab/base", memory_bytes=4 << 30))


def pytorch(machine, taken=None):
    offers = offers_of(MACHINES[machine], PROFILES, taken)
    lab = LabNow({slug: [Offer(**o) for o in found] for slug, found in offers.items()}, taken_at=NOW)
    return spawn_view(CATALOGUE, lab, None, NOW).profiles[0]


def cards(machine, taken=None):
    return {c.value: (c.count, c.reason) for c in pytorch(machine, taken).shapes}


def test_a_machine_without_gpus_says_it_once_and_offers_the_cpu():
    page = pytorch("none")
    assert [c.count for c in page.shapes] == ["any time", "off", "off", "off"]
    assert "no NVIDIA driver" in page.notice
    assert page.preferred == "none"


def test_one_gpu_and_seven_slices():
    found = cards("mig", {**gpus(1), **slices(1, 5)})
    assert found["mig:1g.10gb"] == ("2 of 7 free", "")
    assert found["memory"] == ("up to 9 GiB free", "")
    assert found["gpu:1"][0] == "0 of 1 free"
    assert found["gpu:2"][0] == "not here"


@pytest.mark.parametrize("taken", [0, 63, 64])
def test_64_gpus(taken):
    assert cards("64", gpus(taken))["gpu:1"][0] == f"{64 - taken} of 64 free"


def test_no_card_says_that_anybody_asked():
    for machine in MACHINES:
        for _, reason in cards(machine, {**gpus(64), **slices(1, 7)}).values():
            assert not reason.startswith("You asked")
            assert reason == "" or reason[0].isupper()
