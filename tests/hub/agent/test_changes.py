from dataclasses import replace

from gpulab_hub.agent.changes import changes
from gpulab_spawner.placement.devices import Gpu, MigDevice
from gpulab_spawner.placement.inventory import Inventory

WHOLE = Gpu("GPU-a", 0, model="H100", mig_enabled=False)
PARENT = Gpu("GPU-b", 1, model="H100", mig_enabled=True)
SLICE = MigDevice("MIG-1", "GPU-b", "1g.10gb", 3)
BOTH = Inventory(1.0, driver_version="580.95.05", cuda_version="13.0", gpus=(WHOLE, PARENT), migs=(SLICE,))
NONE = Inventory(1.0, problem="The driver is not loaded.")


def test_the_first_reading_names_all_there_is():
    assert changes(None, BOTH) == (
        "driver 580.95.05, CUDA 13.0",
        "H100 GPU-a appeared",
        "H100 1g.10gb GPU-b/1g.10gb@3 appeared",
    )


def test_the_same_again_is_no_news():
    assert changes(BOTH, replace(BOTH, taken_at=2.0)) == ()
    assert changes(NONE, replace(NONE, taken_at=2.0)) == ()


def test_sickness_and_recovery_are_news():
    sick = replace(BOTH, gpus=(replace(WHOLE, problem="it is lost"), PARENT))
    assert changes(BOTH, sick) == ("H100 GPU-a cannot be granted: it is lost",)
    assert changes(sick, BOTH) == ("H100 GPU-a is well again",)
    assert changes(None, sick)[1] == "H100 GPU-a appeared: it is lost"


def test_a_sick_parent_speaks_for_each_slice():
    sick = replace(BOTH, gpus=(WHOLE, replace(PARENT, problem="it is lost")))
    assert changes(BOTH, sick) == ("H100 1g.10gb GPU-b/1g.10gb@3 cannot be granted: it is lost",)


def test_a_layout_made_anew_is_news():
    moved = replace(BOTH, migs=(replace(SLICE, uuid="MIG-2"), replace(SLICE, uuid="MIG-3", start=5)))
    assert changes(BOTH, moved) == (
        "H100 1g.10gb GPU-b/1g.10gb@3 has a new UUID, MIG-2",
        "H100 1g.10gb GPU-b/1g.10gb@5 appeared",
    )
    assert changes(moved, BOTH)[0] == "H100 1g.10gb GPU-b/1g.10gb@5 is gone"


def test_a_driver_that_goes_and_comes_back():
    assert changes(None, NONE) == ("no GPU can be used: The driver is not loaded.",)
    assert changes(BOTH, NONE)[0] == "no GPU can be used: The driver is not loaded."
    assert changes(NONE, BOTH)[:2] == ("NVML works again", "driver 580.95.05, CUDA 13.0")
