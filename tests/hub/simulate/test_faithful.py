"""The simulated library against a real H200's answers, and under the unmodified nvitop."""

import json
import os
import subprocess
import sys
from pathlib import Path

import yaml
from tests.hub.simulate.asking import ask

from gpulab_hub.simulate.live import Live

RECORDED = yaml.safe_load(Path(__file__).with_name("h200-answers.yaml").read_text())

QUESTIONS = """
from ctypes import byref, c_uint
recorded = json.loads(sys.argv[1])
said = {"node": {}, "gpu": {}, "instances": {}, "gpm": {}, "nvlink": {}, "peers": {}, "profiles": {}}
said["node"]["nvmlDeviceGetCount before nvmlInit"] = attempt("nvmlDeviceGetCount")
N.nvmlInit()
gpu, peer = N.nvmlDeviceGetHandleByIndex(0), N.nvmlDeviceGetHandleByIndex(1)
for call in list(recorded["node"])[1:]:
    function, *argument = call.split()
    said["node"][call] = attempt(function, *(int(a) if a.isdigit() else a for a in argument))
for function in recorded["gpu"]:
    answer = attempt(function, gpu)
    said["gpu"][function] = list(answer) if isinstance(answer, tuple) else answer
def fields(answer, names):
    return answer if isinstance(answer, str) else {name: getattr(answer, name) for name in names}
said["pci"] = fields(N.nvmlDeviceGetPciInfo(gpu), recorded["pci"])
said["memory"] = fields(attempt("nvmlDeviceGetMemoryInfo", gpu), recorded["memory"])
said["memory_v2"] = fields(attempt("nvmlDeviceGetMemoryInfo", gpu, N.nvmlMemory_v2), recorded["memory_v2"])
said["memory of a wrong version"] = attempt("nvmlDeviceGetMemoryInfo", gpu, 2)
said["instances"] = {
    "mig device 0": attempt("nvmlDeviceGetMigDeviceHandleByIndex", gpu, 0),
    "mig device 15": attempt("nvmlDeviceGetMigDeviceHandleByIndex", gpu, 15),
    "gpu instance 0": attempt("nvmlDeviceGetGpuInstanceById", gpu, 0),
}
said["gpm"]["supported"] = N.nvmlGpmQueryDeviceSupport(gpu).isSupportedDevice
said["gpm"]["sample of gpu instance 0"] = attempt("nvmlGpmMigSampleGet", gpu, 0, N.nvmlGpmSampleAlloc())
for link in ("0", "17", "18"):
    said["nvlink"][link] = attempt("nvmlDeviceGetNvLinkState", gpu, int(link))
said["nvlink"]["type of the other end"] = attempt("nvmlDeviceGetNvLinkRemoteDeviceType", gpu, 0)
said["peers"]["common ancestor"] = N.nvmlDeviceGetTopologyCommonAncestor(gpu, peer)
said["peers"]["status by capability"] = [N.nvmlDeviceGetP2PStatus(gpu, peer, c) for c in range(5)]
for number in recorded["profiles"]:
    p = attempt("nvmlDeviceGetGpuInstanceProfileInfo", gpu, int(number))
    if not isinstance(p, str):
        count = c_uint(8)
        places = (N.c_nvmlGpuInstancePlacement_t * 8)()
        N.nvmlDeviceGetGpuInstancePossiblePlacements(gpu, p.id, places, byref(count))
        left = N.nvmlDeviceGetGpuInstanceRemainingCapacity(gpu, p.id)
        p = [p.name.decode() if isinstance(p.name, bytes) else p.name, p.id, p.sliceCount, p.instanceCount,
             p.multiprocessorCount, p.copyEngineCount, p.decoderCount, p.encoderCount, p.jpegCount,
             p.ofaCount, p.memorySizeMB, left, [places[i].start for i in range(count.value)], places[0].size]
    said["profiles"][number] = p
(running,) = N.nvmlDeviceGetComputeRunningProcesses(gpu)
said["process"] = running.usedGpuMemory
assert running.gpuInstanceId == running.computeInstanceId == 0xFFFFFFFF
said["memory_used"] = said["memory_v2"]["used"]
out(said)
"""


def test_a_simulated_h200_answers_as_the_recorded_one(prepared, tmp_path):
    described = tmp_path / "twoh200.yaml"
    described.write_text("driver: 580.159.04\ngpus: [{model: h200-141, count: 2}]\n")
    machine = prepared(str(described))
    live = Live(machine)
    live.set_memory(0, RECORDED["memory_used"])
    live.start_process(0, os.getpid(), RECORDED["process"])
    question = json.dumps(RECORDED)
    said = ask(machine.environment(), QUESTIONS, question)
    assert said == json.loads(question)


NVITOP = """
import nvitop
found = []
for gpu in nvitop.Device.all():
    found.append([gpu.name(), gpu.uuid(), gpu.memory_total(), gpu.is_mig_mode_enabled(),
                  [[m.name(), m.uuid(), m.memory_total(), m.gpu_instance_id()] for m in gpu.mig_devices()]])
out(found)
"""


def test_nvitop_finds_the_machine(prepared):
    whole, cut = ask(prepared("h100-mig").environment(), NVITOP)
    assert whole[0] == "NVIDIA H100 80GB HBM3"
    assert whole[2:] == [81559 << 20, False, []]
    assert cut[3] is True
    assert [(m[0], m[2], m[3]) for m in cut[4]] == [
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 9984 << 20, gi) for gi in range(7, 14)
    ]
    assert len({m[1] for m in cut[4]}) == 7


def test_nvitop_draws_the_machine_and_its_processes(prepared):
    machine = prepared("h100-mig")
    live = Live(machine)
    live.set_memory(0, 30 << 30)
    live.start_process(0, os.getpid(), 29 << 30)
    live.set_memory(1, 5 << 30, start=2)
    drawn = subprocess.run(
        [sys.executable, "-m", "nvitop", "--once", "--no-unicode"],
        env={**os.environ, **machine.environment(), "COLUMNS": "100", "LC_ALL": "C.UTF-8"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert drawn.returncode == 0, drawn.stderr
    assert "Driver Version: 580.95.05" in drawn.stdout
    assert drawn.stdout.count("H100 80GB HBM3") == 2
    assert "30720MiB / 79.65GiB" in drawn.stdout or "30.00GiB / 79.65GiB" in drawn.stdout
    assert drawn.stdout.count("1g.10gb @ GI/CI:") == 7
    assert "5120MiB /  9984MiB" in drawn.stdout
    assert str(os.getpid()) in drawn.stdout
    assert "29.00GiB" in drawn.stdout
