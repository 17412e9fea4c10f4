import pytest
from tests.fakes import nvml as fake
from tests.fakes.nvml import FakeGpu, FakeMig, FakeNvml, process

from gpulab_spawner.nvml import NvmlReader
from gpulab_spawner.placement.devices import MigDevice

UNNAMED = "the driver's capabilities in /proc do not name it"


def read(nvml, tmp_path):
    return NvmlReader(binding=nvml, driver_proc=tmp_path, alive=lambda pid: True).read(1.0)


def capability(tmp_path, path, minor):
    file = tmp_path / "nvidia/capabilities" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\n")


def test_a_slice_is_read_with_its_place_and_its_access_nodes(tmp_path):
    capability(tmp_path, "gpu3/mig/gi9/access", 489)
    capability(tmp_path, "gpu3/mig/gi9/ci0/access", 490)
    inventory = read(FakeNvml(FakeGpu("GPU-m", minor=3, mig=[FakeMig("MIG-1")])), tmp_path)
    expected = MigDevice("MIG-1", "GPU-m", "1g.10gb", 2, 1, 9, 0, 10 << 30, 489, 490)
    assert inventory.migs == (expected,)
    assert inventory.gpus[0].mig_enabled is True


def test_access_nodes_are_found_in_the_list_where_there_are_no_files(tmp_path):
    (tmp_path / "nvidia-caps").mkdir()
    (tmp_path / "nvidia-caps/mig-minors").write_text("gpu0/gi9/access 84\ngpu0/gi9/ci0/access 85\n")
    (mig,) = read(FakeNvml(FakeGpu("GPU-m", mig=[FakeMig("MIG-1")])), tmp_path).migs
    assert (mig.gi_minor, mig.ci_minor) == (84, 85)


def test_access_nodes_that_nobody_names_are_not_known(tmp_path):
    (mig,) = read(FakeNvml(FakeGpu("GPU-m", mig=[FakeMig("MIG-1")])), tmp_path).migs
    assert (mig.gi_minor, mig.ci_minor) == (None, None)
    assert mig.unknown == {"gi_minor": UNNAMED, "ci_minor": UNNAMED}


def test_slices_come_in_order_of_their_place(tmp_path):
    migs = [FakeMig("MIG-x", gi=7, start=4), FakeMig("MIG-y", gi=8, start=0)]
    inventory = read(FakeNvml(FakeGpu("GPU-m", mig=migs)), tmp_path)
    assert [m.start for m in inventory.migs] == [0, 4]


def test_the_profile_is_the_drivers_word_not_the_memorys(tmp_path):
    mig = FakeMig("MIG-1", name=b"NVIDIA A100-SXM4-80GB MIG 7g.80gb", memory=80640 << 20)
    assert read(FakeNvml(FakeGpu("GPU-m", mig=[mig])), tmp_path).migs[0].profile == "7g.80gb"


def test_a_slice_whose_name_is_hidden_is_named_by_its_profile(tmp_path):
    nvml = FakeNvml(FakeGpu("GPU-m", mig=[FakeMig("MIG-1")]))
    nvml.failures["nvmlDeviceGetName", nvml.gpus[0].mig[0]] = fake.NOT_SUPPORTED
    assert read(nvml, tmp_path).migs[0].profile == "1g.10gb"
    nvml.gpus[0].mig[0].profile_id = 1234
    (mig,) = read(nvml, tmp_path).migs
    assert (mig.profile, mig.problem) == ("unknown", "the driver does not name its profile")


def test_users_are_not_told_where_a_slice_lies_and_it_is_not_granted(tmp_path):
    nvml = FakeNvml(FakeGpu("GPU-m", mig=[FakeMig("MIG-1")]))
    fake.hides_slices_from_users(nvml)
    inventory = read(nvml, tmp_path)
    (mig,) = inventory.migs
    assert mig.start is None
    assert mig.unknown["start"] == "NVML shows it to root only"
    assert inventory.devices()[0].problem == "the driver does not tell where it lies on its GPU"


@pytest.mark.parametrize("profile", ["7g.80gb", "1c.7g.80gb"])
def test_a_profile_with_one_place_tells_it_to_everyone(tmp_path, profile):
    mig = FakeMig("MIG-1", name=f"NVIDIA H100 80GB HBM3 MIG {profile}", start=0)
    nvml = FakeNvml(FakeGpu("GPU-m", mig=[mig]))
    fake.hides_slices_from_users(nvml)
    (read_mig,) = read(nvml, tmp_path).migs
    assert (read_mig.profile, read_mig.start, read_mig.size) == (profile, 0, 8)


def test_a_parent_that_hides_its_processes_is_read_slice_by_slice(tmp_path):
    mig = FakeMig("MIG-1", processes=[process(10, gi=9)])
    nvml = FakeNvml(FakeGpu("GPU-m", mig=[mig]))
    fake.hides_slices_from_users(nvml)
    (gpu,) = read(nvml, tmp_path).gpus
    assert [(p.pid, p.gpu_instance) for p in gpu.processes] == [(10, 9)]
    assert gpu.memory_bytes is None
    assert gpu.unknown == {"memory_bytes": "NVML shows it to root only"}


def test_compute_instances_that_share_a_gpu_instance_are_withheld(tmp_path):
    name = "NVIDIA H100 80GB HBM3 MIG 1c.3g.40gb"
    migs = [FakeMig("MIG-1", name, gi=2, ci=0), FakeMig("MIG-2", name, gi=2, ci=1), FakeMig("MIG-3", gi=9)]
    inventory = read(FakeNvml(FakeGpu("GPU-m", mig=migs)), tmp_path)
    problems = {m.uuid: m.problem for m in inventory.migs}
    assert problems["MIG-1"] == problems["MIG-2"] is not None
    assert problems["MIG-3"] is None


def test_a_slice_that_fails_hides_no_other_and_is_noted_at_its_gpu(tmp_path):
    nvml = FakeNvml(FakeGpu("GPU-m", mig=[FakeMig("MIG-1", gi=7), FakeMig("MIG-2", gi=8)]))
    nvml.failures["nvmlDeviceGetUUID", nvml.gpus[0].mig[0]] = fake.UNKNOWN
    inventory = read(nvml, tmp_path)
    assert [m.uuid for m in inventory.migs] == ["MIG-2"]
    assert inventory.gpus[0].unknown == {"slice 0": "NVML answered 'unknown error'"}


def test_a_mig_gpu_without_slices_offers_nothing(tmp_path):
    inventory = read(FakeNvml(FakeGpu("GPU-m", mig=[])), tmp_path)
    assert inventory.devices() == ()


def test_a_gpu_that_does_not_count_its_slices_says_so(tmp_path):
    nvml = FakeNvml(FakeGpu("GPU-m", mig=[FakeMig("MIG-1")]))
    nvml.failures["nvmlDeviceGetMaxMigDeviceCount", None] = fake.UNKNOWN
    assert read(nvml, tmp_path).gpus[0].unknown["slices"] == "NVML answered 'unknown error'"
