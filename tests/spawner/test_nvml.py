import pytest
from tests.fakes import nvml as fake
from tests.fakes.nvml import FakeGpu, FakeMig, FakeNvml, process

from gpulab_spawner.nvml import REINIT_SECONDS, NvmlReader
from gpulab_spawner.placement.devices import GpuProcess
from gpulab_spawner.placement.inventory import Inventory, dump, load

CONTAINER = "c3" * 32


def reader(nvml, tmp_path, **more):
    return NvmlReader("node", binding=nvml, proc=tmp_path / "proc", driver_proc=tmp_path / "driver", **more)


def two_gpus():
    return FakeNvml(FakeGpu("GPU-a"), FakeGpu("GPU-b", bus_id=b"00000000:43:00.0", minor=1))


def runs(tmp_path, pid, cgroup):
    (tmp_path / "proc" / str(pid)).mkdir(parents=True)
    (tmp_path / "proc" / str(pid) / "cgroup").write_text(cgroup)


def test_a_healthy_machine_is_read_whole_and_survives_the_snapshot(tmp_path):
    inventory = reader(two_gpus(), tmp_path).read(7.0)
    assert (inventory.taken_at, inventory.node, inventory.problem) == (7.0, "node", None)
    assert (inventory.driver_version, inventory.cuda_version) == ("580.95.05", "12.8")
    first, second = inventory.gpus
    assert (first.uuid, first.index, first.minor, first.model) == ("GPU-a", 0, 0, "NVIDIA H100 80GB HBM3")
    assert (first.memory_bytes, first.mig_enabled, first.problem, first.unknown) == (
        80 << 30,
        False,
        None,
        {},
    )
    assert second.pci_bus_id == "00000000:43:00.0"
    assert load(dump(inventory)) == inventory


@pytest.mark.parametrize("how", [fake.falls_off_the_bus, fake.falls_off_the_bus_with_an_open_handle])
def test_a_lost_gpu_keeps_its_identity_and_hides_no_other(tmp_path, how):
    nvml = two_gpus()
    nvml_reader = reader(nvml, tmp_path)
    before = nvml_reader.read(1.0)
    how(nvml, 0)
    lost, well = nvml_reader.read(2.0).gpus
    assert (lost.uuid, lost.model, lost.minor, lost.index) == ("GPU-a", "NVIDIA H100 80GB HBM3", 0, 0)
    assert lost.problem == "it has fallen off the bus (NVML: GPU is lost)"
    assert well == before.gpus[1]


def test_a_lost_gpu_is_known_from_the_last_snapshot_after_a_restart(tmp_path):
    nvml = two_gpus()
    last = reader(nvml, tmp_path).read(1.0)
    fake.falls_off_the_bus(nvml, 1)
    assert reader(nvml, tmp_path, last=last).read(2.0).gpus[1].uuid == "GPU-b"


def test_a_gpu_that_was_lost_before_anyone_knew_it_is_shown_without_a_name(tmp_path):
    nvml = two_gpus()
    fake.falls_off_the_bus(nvml, 1)
    _, lost = reader(nvml, tmp_path).read(1.0).gpus
    assert lost.uuid == "GPU-unknown-at-index-1"
    assert lost.problem


def test_a_gpu_that_another_index_names_now_is_not_taken_for_the_lost_one(tmp_path):
    # After a reboot the order changed, and what is lost now is the other card.
    last = reader(two_gpus(), tmp_path).read(1.0)
    nvml = FakeNvml(*reversed(two_gpus().gpus))
    fake.falls_off_the_bus(nvml, 1)
    well, lost = reader(nvml, tmp_path, last=last).read(2.0).gpus
    assert well.uuid == "GPU-b"
    assert lost.uuid == "GPU-unknown-at-index-1"


def test_a_lost_parent_keeps_its_slices_as_sick_devices(tmp_path):
    nvml = FakeNvml(FakeGpu("GPU-m", mig=[FakeMig("MIG-1")]))
    nvml_reader = reader(nvml, tmp_path)
    nvml_reader.read(1.0)
    fake.falls_off_the_bus(nvml, 0)
    (device,) = nvml_reader.read(2.0).devices()
    assert (device.key, device.uuid) == ("GPU-m/1g.10gb@2", "MIG-1")
    assert "fallen off the bus" in device.problem


def test_nvml_is_started_anew_while_a_gpu_is_sick_but_not_every_second(tmp_path):
    nvml = two_gpus()
    fake.falls_off_the_bus(nvml, 0)
    nvml_reader = reader(nvml, tmp_path)
    calls = []
    nvml.nvmlShutdown = lambda: calls.append("end")
    nvml_reader.read(1.0)
    nvml_reader.read(REINIT_SECONDS)
    assert calls == []
    nvml.failures.clear()
    inventory = nvml_reader.read(1.0 + REINIT_SECONDS)
    assert calls == ["end"]
    assert [gpu.problem for gpu in inventory.gpus] == [None, None]


@pytest.mark.parametrize(
    ("function", "field", "code", "reason"),
    [
        ("nvmlDeviceGetName", "model", fake.UNKNOWN, "NVML answered 'unknown error'"),
        ("nvmlDeviceGetMemoryInfo", "memory_bytes", fake.NOT_SUPPORTED, "this GPU does not report it"),
        ("nvmlDeviceGetMinorNumber", "minor", fake.NO_PERMISSION, "NVML shows it to root only"),
        ("nvmlDeviceGetPciInfo", "pci_bus_id", fake.NOT_FOUND, "NVML does not find it"),
        ("nvmlDeviceGetMigMode", "mig_enabled", fake.UNKNOWN, "NVML answered 'unknown error'"),
        ("nvmlDeviceGetName", "model", 77, "NVML answered error 77"),
    ],
)
def test_a_field_that_is_refused_is_none_with_its_reason(tmp_path, function, field, code, reason):
    nvml = two_gpus()
    nvml.failures[function, nvml.gpus[0]] = code
    broken, whole = reader(nvml, tmp_path).read(1.0).gpus
    assert getattr(broken, field) is None
    assert broken.unknown == {field: reason}
    assert whole.unknown == {}


@pytest.mark.parametrize("code", [fake.NOT_SUPPORTED, fake.FUNCTION_NOT_FOUND])
def test_a_card_without_mig_is_a_whole_gpu(tmp_path, code):
    nvml = two_gpus()
    nvml.failures["nvmlDeviceGetMigMode", None] = code
    assert [gpu.mig_enabled for gpu in reader(nvml, tmp_path).read(1.0).gpus] == [False, False]


def test_a_name_that_is_no_text_does_not_end_the_reading(tmp_path):
    nvml = two_gpus()
    nvml.gpus[0].name = b"H\xff100"

    def garbage(handle):
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")

    assert reader(nvml, tmp_path).read(1.0).gpus[0].model == "H\ufffd100"
    nvml.nvmlDeviceGetName = garbage
    gpu = reader(nvml, tmp_path).read(1.0).gpus[0]
    assert gpu.unknown == {"model": "NVML's answer is unreadable (UnicodeDecodeError)"}


def test_a_gpu_without_a_uuid_is_not_granted(tmp_path):
    nvml = two_gpus()
    nvml.failures["nvmlDeviceGetUUID", nvml.gpus[0]] = fake.UNKNOWN
    assert reader(nvml, tmp_path).read(1.0).gpus[0].problem == "its UUID could not be read"


def test_memory_beyond_repair_and_a_wanted_reset_are_problems(tmp_path):
    nvml = two_gpus()
    nvml.gpus[0].remapped = (0, 3, 0, 1)
    nvml.failures["nvmlDeviceGetMemoryInfo", nvml.gpus[1]] = 16
    worn, stuck = reader(nvml, tmp_path).read(1.0).gpus
    assert "can no longer be remapped" in worn.problem
    assert stuck.problem == "it needs a reset (NVML: reset required)"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (fake.LIBRARY_NOT_FOUND, "No NVIDIA driver is installed: libnvidia-ml.so.1 was not found"),
        (fake.DRIVER_NOT_LOADED, "is not loaded in the kernel. Run modprobe nvidia"),
        (fake.MISMATCH, "in the kernel is version 580.95.05 and its libraries are of another one"),
        (fake.NO_PERMISSION, "may not open /dev/nvidiactl"),
        (fake.UNKNOWN, "NVML does not start: NVML answered 'unknown error'"),
    ],
)
def test_a_driver_that_does_not_work_is_worded_with_the_next_step(tmp_path, code, words):
    (tmp_path / "driver/nvidia").mkdir(parents=True)
    (tmp_path / "driver/nvidia/version").write_text(
        "NVRM version: NVIDIA Kernel Module  580.95.05  Release\n"
    )
    nvml = two_gpus()
    nvml.init_code = code
    inventory = reader(nvml, tmp_path).read(3.0)
    assert words in inventory.problem
    assert (inventory.taken_at, inventory.gpus) == (3.0, ())


def test_a_driver_that_starts_to_work_is_seen_at_the_next_read(tmp_path):
    nvml = two_gpus()
    nvml.init_code = fake.DRIVER_NOT_LOADED
    nvml_reader = reader(nvml, tmp_path)
    assert nvml_reader.read(1.0).problem
    nvml.init_code = 0
    assert len(nvml_reader.read(2.0).gpus) == 2


def test_a_driver_that_is_lost_is_started_again(tmp_path):
    nvml = two_gpus()
    nvml_reader = reader(nvml, tmp_path)
    nvml_reader.read(1.0)
    nvml.failures["nvmlDeviceGetCount", None] = fake.UNKNOWN
    assert nvml_reader.read(2.0).problem == "NVML lists no GPU: NVML answered 'unknown error'."
    assert nvml.starts == 0
    nvml.failures.clear()
    assert nvml_reader.read(3.0).problem is None


def test_no_binding_is_a_problem_in_words(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    assert "nvidia-ml-py is not installed" in NvmlReader().read(1.0).problem


def test_processes_carry_their_container_and_the_vanished_are_left_out(tmp_path):
    nvml = two_gpus()
    nvml.gpus[0].processes = [process(10), process(11), process(12)]
    runs(tmp_path, 10, f"0::/docker/{CONTAINER}\n")
    runs(tmp_path, 11, "0::/user.slice\n")
    gpu = reader(nvml, tmp_path, alive=lambda pid: False).read(1.0).gpus[0]
    assert gpu.processes == (GpuProcess(10, 1 << 30, None, CONTAINER), GpuProcess(11, 1 << 30, None, None))


def test_a_process_that_proc_hides_is_kept_as_foreign(tmp_path):
    nvml = two_gpus()
    nvml.gpus[0].processes = [process(10)]
    gpu = reader(nvml, tmp_path, alive=lambda pid: True).read(1.0).gpus[0]
    assert gpu.processes == (GpuProcess(10, 1 << 30),)


def test_memory_of_a_process_beyond_the_card_is_not_believed(tmp_path):
    nvml = two_gpus()
    nvml.gpus[0].processes = [process(10, 81 << 30), process(11, None)]
    gpu = reader(nvml, tmp_path, alive=lambda pid: True).read(1.0).gpus[0]
    assert [p.memory_bytes for p in gpu.processes] == [None, None]


def test_an_older_driver_is_asked_for_the_older_list(tmp_path):
    nvml = two_gpus()
    nvml.failures["nvmlDeviceGetComputeRunningProcesses", None] = fake.FUNCTION_NOT_FOUND
    nvml.gpus[0].processes = [process(10)]
    gpu = reader(nvml, tmp_path, alive=lambda pid: True).read(1.0).gpus[0]
    assert [p.pid for p in gpu.processes] == [10]
    nvml.failures["nvmlDeviceGetComputeRunningProcesses_v2", None] = fake.FUNCTION_NOT_FOUND
    gpu = reader(nvml, tmp_path, alive=lambda pid: True).read(1.0).gpus[0]
    assert gpu.unknown == {"processes": "this driver is too old to report it"}


def test_whether_a_pid_lives_is_asked_of_the_kernel(tmp_path):
    nvml = two_gpus()
    nvml.gpus[0].processes = [process(1), process(2**31 - 1), process(2**40)]
    gpu = reader(nvml, tmp_path).read(1.0).gpus[0]
    assert [p.pid for p in gpu.processes] == [1]


def test_an_empty_inventory_remembers_nothing(tmp_path):
    nvml = FakeNvml()
    inventory = reader(nvml, tmp_path, last=Inventory(0)).read(1.0)
    assert inventory.problem == "NVML lists no GPU: there is none."
