import json
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab_hub.history import HeldDevice, Record
from gpulab_hub.standing import Downtime
from gpulab_hub.telemetry.status import (
    RECENT_SECONDS,
    STEP_SECONDS,
    Measured,
    course,
    same,
    status,
)
from gpulab_spawner.telemetry.readings import DeviceReading, GpuReading, ProcessReading

GIB = 2**30
NOW = 1_800_000_000.0
GPU = "GPU-1"
MINE, OTHERS = "c" * 64, "d" * 64
HELD = HeldDevice(GPU, GPU, "NVIDIA H100 80GB HBM3", None, 80 * GIB)
SLICE = HeldDevice(f"{GPU}/1g.10gb@4", "MIG-7", "NVIDIA H100 80GB HBM3", "1g.10gb", 10 * GIB)
READING = DeviceReading(
    GPU,
    GPU,
    71.0,
    12 * GIB,
    79 * GIB,
    (
        ProcessReading(11, "small", MINE, GIB),
        ProcessReading(12, "large", MINE, 9 * GIB, 60.0),
        ProcessReading(13, "secret", OTHERS, 2 * GIB),
        ProcessReading(14, "Xorg", None, 2 * GIB),
    ),
)
CARD = GpuReading(GPU, power_watts=310.0, power_limit_watts=700.0, temperature_celsius=64)


def lease(*devices, ends_at=None, trouble=None, container=MINE):
    return Record(
        id="a" * 32,
        node="node",
        person_id="p",
        user="ada",
        server="train",
        profile="base",
        shape="gpu:1",
        image="gpulab/base",
        state="running",
        memory_bytes=GIB,
        opened_at=NOW - 3600,
        ends_at=ends_at,
        container_id=container,
        container_name="n",
        closed_at=None,
        close_reason=None,
        trouble=trouble,
        devices=devices,
    )


def told(record, measured=None, taken_at=NOW - 1, now=NOW, downtime=None):
    return status(record, measured or {}, taken_at, now, downtime)


def test_a_server_without_gpus_is_told_its_time():
    assert told(lease(ends_at=NOW + 7830), taken_at=None) == {
        "layout": 1,
        "written_at": NOW,
        "taken_at": None,
        "max_age_seconds": 15.0,
        "lease": "a" * 32,
        "server": "train",
        "started_at": NOW - 3600,
        "ends_at": NOW + 7830,
        "seconds_left": 7830,
        "page": "/services/gpulab/",
        "devices": [],
        "notices": [],
    }


def test_a_device_is_told_with_the_servers_own_processes_and_no_others():
    measured = {GPU: Measured(READING, CARD, ((int(NOW) - 1, 71.0),))}
    found = told(lease(HELD), measured)
    (device,) = found["devices"]
    assert device.pop("recent")[-1] == 71.0
    assert device == {
        "name": "NVIDIA H100 80GB HBM3",
        "profile": None,
        "uuid": GPU,
        "utilisation": 71.0,
        "memory_used_bytes": 12 * GIB,
        "memory_total_bytes": 79 * GIB,
        "temperature_celsius": 64,
        "power_watts": 310.0,
        "power_limit_watts": 700.0,
        "processes": [
            {"name": "large", "memory_bytes": 9 * GIB, "utilisation": 60.0},
            {"name": "small", "memory_bytes": GIB, "utilisation": None},
        ],
        "recent_step_seconds": 5,
        "unknown": {},
    }
    text = json.dumps(found)
    assert "secret" not in text
    assert "Xorg" not in text


def test_before_its_container_is_known_no_process_is_the_servers_own():
    measured = {GPU: Measured(READING, CARD)}
    (device,) = told(lease(HELD, container=None), measured)["devices"]
    assert device["processes"] is None


def test_what_was_not_measured_is_null_with_its_reason():
    reading = DeviceReading(
        SLICE.key, GPU, None, GIB, unknown={"utilisation": "not on this GPU", "internal": "x"}
    )
    (device,) = told(lease(SLICE), {SLICE.key: Measured(reading, CARD)})["devices"]
    assert (device["utilisation"], device["unknown"]) == (None, {"utilisation": "not on this GPU"})
    assert (device["profile"], device["uuid"], device["memory_total_bytes"]) == ("1g.10gb", "MIG-7", 10 * GIB)


@pytest.mark.parametrize(
    ("measured", "taken_at", "why"),
    [
        (Measured(), None, "no readings have come yet"),
        (Measured(), NOW, "the GPU does not answer"),
        (Measured(None, GpuReading(GPU, problem="it is lost")), NOW, "it is lost"),
    ],
)
def test_a_device_without_a_reading_says_why(measured, taken_at, why):
    (device,) = told(lease(HELD), {GPU: measured}, taken_at)["devices"]
    assert device["utilisation"] is None
    assert device["memory_used_bytes"] is None
    assert device["unknown"] == {"utilisation": why, "memory_used_bytes": why}
    assert device["memory_total_bytes"] == 80 * GIB


def test_a_name_that_a_process_gave_itself_is_plain_text():
    hostile = ProcessReading(1, "a\x1b[31m\n\u202e" + "x" * 100, MINE)
    reading = replace(READING, processes=(hostile,))
    (device,) = told(lease(HELD), {GPU: Measured(reading)})["devices"]
    name = device["processes"][0]["name"]
    assert name.startswith("a?[31m??x")
    assert len(name) == 32


def kinds(found):
    return [(notice["kind"], notice["id"].split(":")[1]) for notice in found["notices"]]


@pytest.mark.parametrize(
    ("left", "expected"),
    [
        (1801, []),
        (1800, [("end", "1800")]),
        (301, [("end", "1800")]),
        (300, [("end", "300")]),
        (0, [("end", "0")]),
    ],
)
def test_its_end_is_told_in_time(left, expected):
    assert kinds(told(lease(ends_at=NOW + left))) == expected


def test_an_end_that_was_moved_is_news_again():
    (one,) = told(lease(ends_at=NOW + 200))["notices"]
    (other,) = told(lease(ends_at=NOW + 250))["notices"]
    assert (
        one["words"]
        == other["words"]
        == "The time of this server ends in less than 5 minutes. Save your work."
    )
    assert one["id"] != other["id"]


def test_a_server_that_was_asked_for_no_longer_is_not_warned_at_its_start():
    short = replace(lease(ends_at=NOW + 1790), opened_at=NOW - 5)
    assert kinds(told(short)) == []
    assert kinds(told(short, now=NOW + 1500)) == [("end", "300")]


def test_trouble_with_a_gpu_is_told():
    (told_of,) = told(lease(trouble="A GPU is sick."))["notices"]
    assert told_of == {"id": "trouble:A GPU is sick.", "kind": "trouble", "words": "A GPU is sick."}


def maintenance(begins_in, *devices, words="driver upgrade"):
    return Downtime(NOW + begins_in, words, "root", NOW - 60, devices)


@pytest.mark.parametrize("covered", [(), (GPU,), (SLICE.key,)])
def test_maintenance_of_its_device_is_its_end_when_that_is_sooner(covered):
    found = told(lease(SLICE, ends_at=NOW + 9000), downtime=maintenance(7200, *covered))
    assert (found["ends_at"], found["seconds_left"]) == (NOW + 7200, 7200)
    (news,) = found["notices"]
    assert news["kind"] == "maintenance"
    assert re.fullmatch(
        r"This server ends at \w* ?[\d:]+ for maintenance: driver upgrade. Save your work before.",
        news["words"],
    )
    assert told(lease(SLICE, ends_at=NOW + 5000), downtime=maintenance(7200))["ends_at"] == NOW + 5000
    assert told(lease(SLICE), downtime=maintenance(7200))["ends_at"] == NOW + 7200
    assert kinds(told(lease(SLICE), downtime=maintenance(200)))[1] == ("end", "300")


def test_maintenance_of_other_devices_is_none_of_its_news():
    for record, downtime in ((lease(SLICE), maintenance(60, "GPU-2")), (lease(), maintenance(60))):
        found = told(record, downtime=downtime)
        assert (found["ends_at"], found["notices"]) == (None, [])


def test_time_alone_makes_no_other_content():
    record = lease(ends_at=NOW + 9000)
    assert same(told(record), told(record, now=NOW + 3))
    assert not same(told(record), told(record, taken_at=NOW))
    assert not same(told(record), told(replace(record, trouble="x")))
    assert not same(None, told(record))


STEPS = RECENT_SECONDS // STEP_SECONDS


def test_the_course_has_a_mean_for_each_step_and_a_gap_where_nothing_was_measured():
    # NOW is a multiple of the step: its own step has just begun.
    recent = [(NOW - 6, 100.0), (NOW - 5, 10.0), (NOW - 4, None), (NOW - 1, 20.0), (NOW, 50.0)]
    assert course(recent, NOW)[-4:] == [None, 100.0, 15.0, 50.0]
    assert course([(NOW - RECENT_SECONDS, 9.0)], NOW) == [None] * STEPS
    assert course([(NOW + 60, 9.0)], NOW) == [None] * STEPS


values = st.one_of(st.none(), st.floats(0, 100))
samples = st.lists(st.tuples(st.floats(NOW - 2 * RECENT_SECONDS, NOW + 60), values), max_size=50)


@given(samples, st.floats(NOW - 10, NOW + 10))
def test_the_course_is_always_as_long_and_within_what_was_measured(recent, now):
    found = course(recent, now)
    measured = [value for _, value in recent if value is not None]
    assert len(found) == STEPS
    for value in found:
        assert value is None or min(measured) - 0.1 <= value <= max(measured) + 0.1


@given(samples, st.floats(NOW, NOW + STEP_SECONDS - 0.01))
def test_the_course_stays_the_same_within_a_step(recent, now):
    assert course(recent, now) == course(recent, NOW)
