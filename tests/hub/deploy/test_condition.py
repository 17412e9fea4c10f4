import json

import pytest

from gpulab_hub.deploy.condition import Condition, complete, duration, gpus_in_words, problems, text
from gpulab_hub.deploy.processes import NAMES, ProcessState
from gpulab_spawner.placement.devices import Gpu, MigDevice
from gpulab_spawner.placement.inventory import Inventory

UP = tuple(ProcessState(name, running=True, uptime_seconds=3700, pid=7) for name in NAMES)
FINE = {"answers": True, "engine": "28.5.1", "age": 1.0, "max_age": 15.0, "ledger": None}


def test_a_lab_that_is_well_has_no_problems():
    assert problems(UP, **FINE) == ()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"answers": False}, "the hub does not answer"),
        ({"engine": None}, "Docker does not answer"),
        ({"age": None}, "the agent has written no snapshot"),
        ({"age": 61.0}, "the snapshot of the GPUs is 1 min 1 s old"),
        ({"ledger": "the database is gone"}, "the database is gone"),
    ],
)
def test_each_thing_that_is_down_is_told(wrong, words):
    assert problems(UP, **{**FINE, **wrong}) == (words,)


def test_a_process_that_no_supervisor_knows_is_stopped():
    found = complete(UP[:3])
    assert [p.name for p in found] == list(NAMES)
    assert problems(found, **FINE) == ("hub is down (stopped)",)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s"), (59.9, "59 s"), (60, "1 min"), (61, "1 min 1 s"), (3600, "1 h"), (90061, "1 d 1 h")],
)
def test_a_duration_has_two_units_at_most(seconds, words):
    assert duration(seconds) == words


def test_devices_are_counted_by_kind():
    seen = Inventory(
        taken_at=0,
        gpus=(
            Gpu("GPU-a", model="NVIDIA H100", mig_enabled=False),
            Gpu("GPU-b", model="NVIDIA H100", mig_enabled=True),
        ),
        migs=tuple(MigDevice(f"MIG-{n}", gpu_uuid="GPU-b", profile="1g.10gb", start=n) for n in range(7)),
    )
    assert gpus_in_words(seen) == "1 x NVIDIA H100, 7 x 1g.10gb"
    assert gpus_in_words(Inventory(taken_at=0)) == "none"
    assert gpus_in_words(Inventory(taken_at=0, problem="no driver")) == "off: no driver"
    assert gpus_in_words(None) == "not known"


def test_the_text_and_the_json_tell_the_same():
    found = Condition(
        url="http://127.0.0.1:8000",
        answers=False,
        supervisor="systemd",
        processes=complete(UP[:3]),
        engine=None,
        simulated="2xh100",
        gpus="2 x NVIDIA H100",
        snapshot_age=2.0,
        servers=None,
        problems=("hub is down (stopped)",),
    )
    assert text(found).splitlines() == [
        "http://127.0.0.1:8000  DOES NOT ANSWER",
        "  agent    up 1 h 1 min, process 7",
        "  proxy    up 1 h 1 min, process 7",
        "  service  up 1 h 1 min, process 7",
        "  hub      DOWN (stopped)",
        "  docker   DOES NOT ANSWER",
        "  gpus     SIMULATED 2xh100: 2 x NVIDIA H100 (seen 2 s ago)",
        "  servers  not known",
        "! hub is down (stopped)",
    ]
    data = json.loads(json.dumps(found.as_json()))
    assert data["processes"][0] == {
        "name": "agent",
        "running": True,
        "uptime_seconds": 3700,
        "pid": 7,
        "words": "",
    }
    assert data["problems"] == ["hub is down (stopped)"]
