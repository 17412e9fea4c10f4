"""Proves on real GPUs that a container sees exactly its lease, in the ways `cdi` and `devices`.

    python -m tests.live.gpu_host.injection [--json FILE]

It wants root, two GPUs, a Python with PyTorch, and nothing else of the host: the engine is the tests' own,
and the containers' image is a copy of the host's root without its driver, its big directories borrowed
read-only. The create arguments are the product's. It changes no mode, clock or MIG layout, and removes what
it made.

It prints a Markdown table, one row a step, and ends with 1 if a step failed.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
from tests.live.engines import current_engine

from gpulab_hub import driver_files
from gpulab_spawner.container import Server, Site, container_name, create_arguments
from gpulab_spawner.engine import Engine
from gpulab_spawner.gate import Lease, Person
from gpulab_spawner.injection import DriverFiles, Injection, by_cdi, by_nodes
from gpulab_spawner.nvml import NvmlReader
from gpulab_spawner.placement.devices import Device
from gpulab_spawner.profiles import Defaults, read_profiles
from gpulab_spawner.storage import Storage

IMAGE = "gpulab-host-root:latest"
LEFT_OUT = (
    "proc",
    "sys",
    "dev",
    "tmp",
    "run",
    "mnt",
    "media",
    "boot",
    "srv",
    "lost+found",
    "old_root",
    "work",
    "cache",
)
BORROWED = ("/opt", "/usr/local/cuda-13.0")
DRIVER = Path("/usr/local/nvidia")
SEES = """
import glob, json, sys
nodes = sorted(set(glob.glob("/dev/nvidia*") + glob.glob("/dev/nvidia-caps/*")) - {"/dev/nvidia-caps"})
import pynvml
try:
    pynvml.nvmlInit()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    nvml = [pynvml.nvmlDeviceGetUUID(handle) for handle in handles]
except pynvml.NVMLError as error:
    nvml = []
import torch
cuda = [f"GPU-{torch.cuda.get_device_properties(i).uuid}" for i in range(torch.cuda.device_count())]
others = []
import os
for minor in range(8):
    try:
        os.mknod(f"/tmp/n{minor}", 0o20666, os.makedev(195, minor))
        os.close(os.open(f"/tmp/n{minor}", os.O_RDWR))
        others.append(minor)
    except OSError:
        pass
milliseconds = None
if cuda:
    x = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    for _ in range(20): x @ x
    torch.cuda.synchronize()
    start, end, times = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True), []
    for _ in range(7):
        start.record()
        for _ in range(20): x @ x
        end.record(); torch.cuda.synchronize(); times.append(start.elapsed_time(end) / 20)
    milliseconds = sorted(times)[3]
print("SEEN " + json.dumps([nodes, nvml, cuda, others, milliseconds]))
"""


@dataclass(frozen=True)
class Step:
    """One row of the table: what was done, what was seen, whether it is right."""

    name: str
    seen: str
    passed: bool


def main(words: Sequence[str]) -> int:
    """Run every step and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(words)
    directory = Path(tempfile.mkdtemp(prefix="gpulab-gpu-host-"))
    steps: list[Step] = []

    def report(name: str, seen: str, passed: bool) -> None:
        steps.append(Step(name, seen, passed))
        print(f"| {name} | {seen} | {'passed' if passed else 'FAILED'} |", flush=True)

    (directory / "labs").mkdir()
    with current_engine(directory / "engine") as engine:
        inventory = NvmlReader("host").read(time.time())
        devices = [d for d in inventory.devices() if d.problem is None]
        print(f"driver {inventory.driver_version}, CUDA {inventory.cuda_version}, Docker {_version(engine)}")
        print("| step | seen | |\n|---|---|---|")
        report(
            "inventory",
            f"{len(devices)} x {devices[0].model}, {inventory.problem or 'healthy'}",
            len(devices) > 1,
        )
        bare = _bare()
        report("matmul 8192 bf16, bare", f"{bare:.3f} ms", True)
        _import_host(engine.url)
        spec = engine.cdi_dir / "gpulab-proof.json"
        spec.write_text(json.dumps(_cdi(devices)), encoding="utf-8")
        lab = _Lab(engine.url, directory)
        ways: dict[str, Callable[[Sequence[Device]], Injection]] = {
            "cdi": by_cdi,
            "devices": lambda d: by_nodes(d, _driver()),
        }
        for way, inject in ways.items():
            for device in devices:
                _one(lab, report, way, inject, [device], bare)
            _one(lab, report, way, inject, devices, bare)
            _one(lab, report, way, inject, [], bare)
        spec.unlink()
    if arguments.json:
        arguments.json.write_text(json.dumps([s.__dict__ for s in steps], indent=1), encoding="utf-8")
    return 0 if all(s.passed for s in steps) else 1


class _Lab:
    """Storage and servers of one person, on the tests' engine, by the product's own create arguments."""

    def __init__(self, url: str, directory: Path) -> None:
        self.engine = Engine(docker.APIClient(base_url=url, timeout=600, version="auto"))
        (directory / "storage").mkdir()
        self.site = Site("0" * 12, "bridge", str(directory / "storage"), str(directory / "servers"), IMAGE)
        self.storage = Storage(self.site, self.engine, 0)
        self.person = Person("a" * 32, "ada", 200_001, "ada-proof")
        self.storage.prepare(self.person)
        defaults = Defaults(IMAGE, 32 << 30, cpus=8.0)
        self.profile = read_profiles([{"display_name": "Proof"}], defaults).profiles[0]

    def run(
        self, devices: Sequence[Device], injection: Injection, environment: dict[str, str]
    ) -> tuple[str, float]:
        lease = Lease(secrets.token_hex(16), "", self.person, "", "proof", tuple(devices), 0, 0.0)
        self.storage.write_files(lease, ())
        command = ["python3", "-c", SEES]
        server = Server(lease, self.profile, environment, injection, command)
        body: dict[str, Any] = create_arguments(self.site, server)
        body["HostConfig"]["Mounts"] += [
            {"Type": "bind", "Source": path, "Target": path, "ReadOnly": True}
            for path in BORROWED
            if Path(path).is_dir()
        ]
        began = time.monotonic()
        container = self.engine.create(body, container_name(self.site.hub_id, lease.id))
        try:
            self.engine.start(container)
            started = time.monotonic() - began
            while (state := self.engine.inspect(container)) is not None and state.alive:
                time.sleep(0.2)
            return self.engine.logs(container, 200), started
        finally:
            self.engine.stop(container, 1)
            self.engine.remove(container)
            self.storage.remove_files(lease.id)


def _one(
    lab: _Lab,
    report: Callable[[str, str, bool], None],
    way: str,
    inject: Callable[[Sequence[Device]], Injection],
    devices: Sequence[Device],
    bare: float,
) -> None:
    name = f"{way}: {len(devices)} GPU(s)" + (f" ({devices[0].uuid[:12]})" if len(devices) == 1 else "")
    hostile = {
        "NVIDIA_VISIBLE_DEVICES": "all",
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.environ.get("PROOF_PATH", ""),
    }
    output, started = lab.run(devices, inject(devices), hostile)
    line = next((text for text in output.splitlines() if text.startswith("SEEN ")), None)
    if line is None:
        report(name, output.strip()[-300:].replace("\n", " "), False)
        return
    nodes, nvml, cuda, others, milliseconds = json.loads(line.removeprefix("SEEN "))
    granted = sorted(d.uuid for d in devices)
    own = sorted(f"/dev/nvidia{d.minor}" for d in devices)
    right = (
        sorted(nvml) == granted
        and sorted(cuda) == granted
        and [n for n in nodes if n.removeprefix("/dev/nvidia").isdigit()] == own
        and not others
    )
    speed = f", matmul {milliseconds:.3f} ms ({milliseconds / bare:.2f}x bare)" if milliseconds else ""
    seen = f"nodes {len(nodes)}, NVML {len(nvml)}, CUDA {len(cuda)}, mknod opens {len(others)}"
    seen += f"{speed}, up in {started:.2f} s"
    report(name, seen, right)


def _bare() -> float:
    answer = subprocess.run([_python(), "-c", SEES], capture_output=True, text=True, check=False)
    line = next(text for text in answer.stdout.splitlines() if text.startswith("SEEN "))
    return float(json.loads(line.removeprefix("SEEN "))[4])


def _python() -> str:
    return os.environ.get("PROOF_PYTHON", "python3")


def _import_host(url: str) -> None:
    """Make an image of the host's root, less what is mounted, borrowed, or the driver's."""
    left_out = [f"--exclude=./{name}/*" for name in LEFT_OUT]
    left_out += [f"--exclude=.{path}/*" for path in (*BORROWED, str(DRIVER), "/var/lib/docker", "/root")]
    left_out += [
        "--exclude=libcuda.so*",
        "--exclude=libnvidia-*",
        "--exclude=libcudadebugger*",
        "--exclude=./tmp",
    ]
    tar = subprocess.Popen(
        ["tar", "--one-file-system", "-C", "/", "-cf", "-", *left_out, "."],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    client = docker.APIClient(base_url=url, timeout=600, version="auto")
    client.import_image_from_stream(tar.stdout, repository=IMAGE.split(":")[0], tag="latest")
    tar.wait()
    client.close()


def _version(engine: Any) -> str:
    client = engine.client()
    try:
        return str(client.version()["Version"])
    finally:
        client.close()


def _driver() -> DriverFiles:
    """The driver's files where the tests' engine, which has a /usr of its own, sees them too."""
    return driver_files.find(DRIVER if DRIVER.is_dir() else None)


def _cdi(devices: Sequence[Device]) -> dict[str, object]:
    """A CDI specification as the toolkit would write it: a name for each UUID, the driver's files for all."""
    files = _driver()
    mounts = [
        {"hostPath": host, "containerPath": inside, "options": ["ro", "nosuid", "nodev", "rbind", "rprivate"]}
        for host, inside in files.binds.items()
    ]
    return {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": [
            {"name": d.uuid, "containerEdits": {"deviceNodes": [{"path": f"/dev/nvidia{d.minor}"}]}}
            for d in devices
        ],
        "containerEdits": {
            "deviceNodes": [{"path": f"/dev/{n}"} for n in ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")],
            "mounts": mounts,
        },
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
