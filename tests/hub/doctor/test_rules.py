"""Each rule on one fact that is wrong: its level, its figure, its next step."""

import pytest

from gpulab_hub.doctor import checks
from gpulab_hub.doctor.facts import CdiFacts, EngineFacts, Facts, GpuFacts, HostFacts, LabFacts, Place
from gpulab_hub.doctor.floors import Floors

GIB = 2**30
DIRECTORY = ("/etc/cdi",)
NAMES = frozenset({"nvidia.com/gpu=GPU-a", "nvidia.com/gpu=GPU-b"})


def finding(facts, check):
    return next(f for f in checks.examine(facts) if f.id == check)


def test_a_sound_machine_is_ok_throughout(sound):
    assert {f.id: f.level for f in checks.examine(sound)} == {f.id: "ok" for f in checks.examine(sound)}


WRONG = [
    ("gpus", {"gpu": {"problem": "driver/library version mismatch"}}, "fail", "GPU shapes are off", "reboot"),
    ("gpus", {"gpu": {"problem": "no driver"}}, "fail", "no driver", "nvidia-smi"),
    (
        "gpus",
        {"gpu": {"device_uuids": ()}},
        "fail",
        "2 NVIDIA GPUs on the PCI bus, and none to grant",
        "devices",
    ),
    ("gpus", {"gpu": {"cards": 0}}, "off", "servers run without GPUs", ""),
    ("gpus", {"gpu": {"simulate": "2xh100"}}, "ok", "SIMULATED: 2xh100", ""),
    ("driver", {"gpu": {"driver": None}}, "fail", "no NVIDIA driver answers", "525.60.13"),
    ("driver", {"gpu": {"driver": "470.57.02"}}, "fail", "driver 470.57.02 runs CUDA 11.x at most", "580"),
    ("driver", {"gpu": {"driver": "390.10"}}, "fail", "no CUDA that frameworks still use", "580"),
    ("driver", {"gpu": {"driver": "550.54.14"}}, "warn", "runs CUDA up to 12.x", "CUDA 13 need 580"),
    ("driver", {"gpu": {"driver": "535.54.03"}}, "warn", "last update in 2026-06", "580"),
    ("driver", {"gpu": {"driver": "616.00"}}, "ok", "CUDA 13.x", ""),
    ("driver", {"gpu": {"cards": 0, "driver": None}}, "off", "no driver needed", ""),
    ("snapshot", {"gpu": {"snapshot_age": None}}, "fail", "no snapshot yet", "deploy/up"),
    (
        "snapshot",
        {"gpu": {"snapshot_age": 15.5}},
        "fail",
        "16 s old; after 15 s no GPU is granted",
        "gpulab status",
    ),
    ("snapshot", {"gpu": {"snapshot_problem": "it has layout 2"}}, "fail", "layout 2", "one release"),
    ("persistence", {"gpu": {"persistence": False}}, "warn", "does not run", "systemctl enable"),
    ("persistence", {"gpu": {"cards": 0}}, "off", "no real GPU", ""),
    ("pynvml", {"host": {"pynvml_package": "12.0.0"}}, "fail", "pynvml 12.0.0", "pip uninstall pynvml"),
    ("docker", {"engine": {"version": None, "problem": "no socket"}}, "fail", "no socket", "Start Docker"),
    ("docker", {"engine": {"version": "19.03.8"}}, "fail", "19.03.8 is older than 20.10", "Upgrade"),
    ("live-restore", {"engine": {"live_restore": False}}, "warn", "ends every server", "daemon.json"),
    ("live-restore", {"engine": {"live_restore": None}}, "off", "does not answer", ""),
    ("cdi", {"engine": {"version": "20.10.24"}}, "off", "has no CDI", ""),
    ("cdi", {"engine": {"cdi": CdiFacts()}}, "warn", "CDI is off in Docker", "daemon.json"),
    (
        "cdi",
        {"gpu": {"device_uuids": ("GPU-a", "GPU-c")}},
        "warn",
        "no spec names GPU-c (1 of 2)",
        "nvidia-ctk",
    ),
    (
        "cdi",
        {"engine": {"cdi": CdiFacts(DIRECTORY, NAMES, ("nvidia.com/gpu=GPU-a",))}},
        "warn",
        "two specs",
        "Remove",
    ),
    (
        "cdi",
        {"engine": {"cdi": CdiFacts(DIRECTORY, NAMES, missing_nodes=("/dev/nvidia1",))}},
        "warn",
        "/dev/nvidia1",
        "nvidia-ctk",
    ),
    (
        "cdi",
        {"gpu": {"driver": "590.44.01"}},
        "warn",
        "for driver 580.95.05, and 590.44.01 is loaded",
        "nvidia-ctk",
    ),
    ("cdi", {"gpu": {"cards": 0}}, "off", "no GPU here", ""),
    ("nvidia-toolkit", {"engine": {"toolkit": "1.17.7"}}, "fail", "CVE-2025-23266", "1.17.8"),
    ("nvidia-toolkit", {"engine": {"toolkit": None}}, "off", "not installed", ""),
    (
        "default-runtime",
        {"engine": {"default_runtime": "nvidia"}},
        "warn",
        "sees every GPU",
        "default-runtime",
    ),
    (
        "cgroup-driver",
        {"engine": {"cgroup_driver": "systemd"}, "lab": {"injection": "nvidia"}},
        "warn",
        "daemon-reload",
        "engine.injection: devices",
    ),
    ("cgroup-driver", {"engine": {"cgroup_driver": "systemd"}}, "ok", "systemd", ""),
    (
        "image",
        {"lab": {"image_here": False}},
        "fail",
        "gpulab/base:0.1.0 is not on this machine",
        "images build",
    ),
    ("image", {"lab": {"image_here": None}}, "off", "does not answer", ""),
    ("storage", {"lab": {"storage_problem": "another directory"}}, "fail", "another directory", "same paths"),
    ("storage", {"lab": {"storage_looked": False}}, "off", "needs root", "as root"),
    ("memlock", {"lab": {"memlock": None}}, "off", "not tried", "as root"),
    ("memlock", {"lab": {"memlock": False, "memlock_kept": False}}, "warn", "pinned", "LimitMEMLOCK"),
    (
        "memlock",
        {"lab": {"memlock": False}},
        "warn",
        "cannot lift the memlock limit, unlike before",
        "deploy/up",
    ),
    ("database", {"lab": {"database_problem": "revision 3"}}, "fail", "revision 3", "db upgrade"),
    (
        "limits",
        {"lab": {"limit_differences": ("everyone gpus: the file says 1, the database 2", "b", "c", "d")}},
        "warn",
        "everyone gpus: the file says 1, the database 2; b; c and 1 more",
        "gpulab quota set",
    ),
    ("limits", {"lab": {"limit_differences": None}}, "off", "not read", ""),
    ("port", {"lab": {"port_taken_by": "nginx (process 7)"}}, "fail", "nginx (process 7)", "listen.port"),
    ("service", {"service": {"running": False, "silent": "refused"}}, "fail", "does not run", "deploy/up"),
    ("service", {"service": {"silent": "timed out"}}, "fail", "how it is: timed out", "gpulab status"),
    ("service", {"service": {"release": "0.0.9"}}, "warn", "0.0.9, and 0.1.0 is installed", "deploy/up"),
    ("service", {"service": {"problems": ("a", "b")}}, "warn", "it runs, but: a; b", "by itself"),
    ("inotify", {"host": {"inotify_instances": 64}}, "warn", "64 instances", "sysctl.d"),
    ("inotify", {"host": {"inotify_watches": 8192}}, "warn", "8192 watches", "sysctl.d"),
    ("inotify", {"host": {"inotify_instances": None}}, "off", "cannot be read", ""),
    (
        "pids",
        {"host": {"pid_max": 32767}},
        "warn",
        "32767 process ids; 8 servers at servers.pids take 32768",
        "pid_max",
    ),
    ("pids", {"host": {"pid_max": None}}, "off", "cannot be read", ""),
    ("files", {"host": {"open_files": 1024}}, "warn", "1024 files", "nr_open"),
    ("files", {"host": {"open_files": None}}, "off", "cannot be read", ""),
]


@pytest.mark.parametrize(("check", "wrong", "level", "words", "step"), WRONG)
def test_what_is_wrong_is_told_with_a_next_step(but, check, wrong, level, words, step):
    found = finding(but(**wrong), check)
    assert found.level == level
    assert words in found.what
    assert step in found.next_step


def test_every_warning_and_failure_has_a_next_step(but):
    for _, wrong, *_ in WRONG:
        for found in checks.examine(but(**wrong)):
            assert bool(found.next_step) or found.level in ("ok", "off"), found


@pytest.mark.parametrize(
    ("free", "level"),
    [(None, "fail"), (GIB - 1, "fail"), (GIB, "warn"), (2 * GIB - 1, "warn"), (2 * GIB, "ok")],
)
def test_space_is_told_before_it_is_gone(but, free, level):
    facts = but(host={"places": (Place("storage", "/srv/homes", free, GIB),)})
    found = finding(facts, "space:storage")
    assert found.level == level
    assert "/srv/homes" in found.what


@pytest.mark.parametrize(("kind", "level"), [("nfs4", "fail"), ("ext4", "ok"), (None, "off")])
def test_a_state_directory_on_the_network_is_refused(but, kind, level):
    place = Place("state", "/net/lab", 100 * GIB, GIB, kind)
    assert finding(but(host={"places": (place,)}), "filesystem").level == level


def test_nothing_known_fails_no_rule_and_claims_nothing():
    unknown = Facts(
        GpuFacts(cards=1), EngineFacts(), HostFacts(), LabFacts(), Floors({"13": "580"}, {}), "2026-11"
    )
    levels = {f.id: f.level for f in checks.examine(unknown)}
    assert levels.pop("pynvml") == "ok"
    assert levels.pop("port") == "ok"
    assert levels.pop("database") == "ok"
    assert set(levels.values()) <= {"fail", "warn", "off"}


def test_ids_are_unique(sound):
    ids = [f.id for f in checks.examine(sound)]
    assert len(ids) == len(set(ids))
