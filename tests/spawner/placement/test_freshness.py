import pytest

from gpulab_spawner.errors import GpusOff, InventoryStale
from gpulab_spawner.placement.freshness import require_usable
from gpulab_spawner.placement.inventory import Inventory


def test_a_fresh_healthy_snapshot_is_used():
    inventory = Inventory(100.0)
    assert require_usable(inventory, 115.0, 15.0) is inventory


@pytest.mark.parametrize(
    ("inventory", "words", "age"),
    [
        (None, "nothing is known of the GPUs of this machine yet", None),
        (Inventory(60.0), "is 40 s old, and 15 s is the limit", 40.0),
        (Inventory(160.0), "is 60 s ahead of the clock", -60.0),
        (Inventory(60.0, problem="no driver"), "is 40 s old", 40.0),
    ],
)
def test_a_stale_snapshot_is_refused_with_its_age(inventory, words, age):
    with pytest.raises(InventoryStale, match=words) as caught:
        require_usable(inventory, 100.0, 15.0)
    assert caught.value.details["age_seconds"] == age


def test_a_machine_whose_gpus_are_off_says_why():
    with pytest.raises(GpusOff, match=r"are off: the driver is not loaded\. Start a server without GPUs"):
        require_usable(Inventory(100.0, problem="the driver is not loaded."), 100.0, 15.0)
