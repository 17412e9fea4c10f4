"""The GPUs page as values: states, figures, places, summary, ages."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.lab import GIB, NOON, machine

from gpulab_hub.admission import View
from gpulab_hub.service.board import Source, board
from gpulab_hub.service.figures import Figure, Sparks, gib, sparkline
from gpulab_hub.standing import OpenLease
from gpulab_hub.withheld import Survey
from gpulab_spawner.placement.devices import MigDevice
from gpulab_spawner.placement.inventory import Inventory
from gpulab_spawner.telemetry.readings import Batch, DeviceReading, GpuReading


def lease(key, ends_at=None, opened_at=NOON - 3600):
    return OpenLease("1", "node", "p", "ada", "", "running", 1, ends_at, "c", opened_at, (key,))


def look(inventory=None, holders=None, withheld=None, batch=None, now=NOON):
    inventory = machine(2, slices=2) if inventory is None else inventory
    view = View(Survey.of(inventory), holders or {}, withheld or {}, now)
    return board(Source(view, batch), lambda key: f"M0 {len(key)}", 15.0)


def test_before_the_first_readings_every_figure_says_so():
    found = look().cells
    for name in ("g0.use", "g0.heat", "g2.heat"):
        assert found[name] == Figure("not measured", "the agent has sent no readings yet")
    assert found["d2.use"] == Figure("not measured", "the agent has sent no readings yet")
    assert found["page.stale"] == "no readings yet"
    assert all("0 %" not in str(cell) for cell in found.values())


def test_states_in_words():
    inventory = machine(4)
    inventory = replace(
        inventory, gpus=(replace(inventory.gpus[0], problem="it is lost"), *inventory.gpus[1:])
    )
    held = {"GPU-1": lease("GPU-1", NOON + 7800)}
    found = look(inventory, held, {"GPU-1": "taken by ada", "GPU-2": "cordoned: fan"}).cells
    told = [(found[f"d{n}.state"], found[f"d{n}.what"]) for n in range(4)]
    assert told == [
        ("sick", "out of service: it is lost"),
        ("held", ""),
        ("withheld", "cordoned: fan"),
        ("free", "free"),
    ]
    assert found["d1.time"] == "for 1 h · 2 h 10 min left"
    assert (found["sum.gpus"], found["sum.gpus_of"]) == ("1", "of 4 GPUs free")
    assert (found["sum.next"], found["sum.next_of"]) != ("", "")


def test_a_declared_end_that_has_passed():
    found = look(machine(1), {"GPU-0": lease("GPU-0", NOON - 60)}).cells
    assert found["d0.time"] == "for 1 h · past its end"
    assert found["sum.next"] == ""


def test_a_sick_gpu_that_is_held_names_its_holder_too():
    inventory = machine(1)
    inventory = replace(inventory, gpus=(replace(inventory.gpus[0], problem="it is lost"),))
    found = look(inventory, {"GPU-0": lease("GPU-0")})
    assert found.cells["d0.state"] == "sick"
    assert "d0" in found.held


def test_slices_lie_in_their_places():
    parent = replace(machine(0, slices=1).gpus[0])
    migs = tuple(
        MigDevice(f"MIG-{start}", parent.uuid, profile, start, size, start, 0, GIB)
        for profile, start, size in (("3g.40gb", 4, 4), ("2g.20gb", 0, 2), ("1g.10gb", 2, 1))
    )
    (row,) = look(Inventory(NOON, gpus=(parent,), migs=migs)).rows
    assert [(p.profile, p.at, p.size) for p in row.parts] == [
        ("2g.20gb", 1, 2),
        ("1g.10gb", 3, 1),
        ("3g.40gb", 5, 4),
    ]
    assert row.columns == 8
    a30 = replace(parent, model="NVIDIA A30")
    assert look(Inventory(NOON, gpus=(a30,), migs=())).rows[0].columns == 4
    assert look(Inventory(NOON, gpus=(a30,), migs=())).cells["g0.none"] == "cut into no slices yet"


def test_a_parent_that_refuses_leaves_its_slices_and_neighbours_right():
    readings = (
        DeviceReading("GPU-0", "GPU-0", 41.6, 30 * GIB, 80 * GIB),
        DeviceReading("GPU-mig/1g.10gb@0", "GPU-mig", 12.0, 2 * GIB, 9 * GIB),
        DeviceReading(
            "GPU-mig/1g.10gb@1", "GPU-mig", unknown={"utilisation": "no GPM", "memory_used_bytes": "refused"}
        ),
    )
    gpus = (
        GpuReading("GPU-0", power_watts=400.4, temperature_celsius=60),
        GpuReading("GPU-mig", problem="NVML did not answer for 10 s"),
    )
    batch = Batch("node", NOON, 1.0, "boot", gpus, readings)
    found = look(batch=batch, holders={"GPU-mig/1g.10gb@0": lease("GPU-mig/1g.10gb@0")}).cells
    assert [found[f"g0.{n}"] for n in ("use", "memory", "heat", "power")] == [
        "42 %",
        "30 of 80 GiB",
        "60 °C",
        "400 W",
    ]
    assert found["g1.use"] == Figure("not measured", "the newest readings do not speak of it")
    assert found["g1.memory"] == ""
    assert found["g2.heat"] == Figure("not measured", "NVML did not answer for 10 s")
    assert (found["g2.use"], found["g2.memory"]) == ("1 of 2 held", Figure("memory not measured", "refused"))
    assert (found["d2.use"], found["d2.fill"]) == (Figure("12 %, 2 GiB"), "12")
    assert found["d3.use"] == Figure("not measured", "no GPM")


def test_data_older_than_its_limit_says_its_age():
    batch = Batch("node", NOON - 12, 1.0, "boot")
    found = look(replace(machine(1), taken_at=NOON - 90), batch=batch).cells
    assert found["page.stale"] == "readings are 12 s old"
    assert "1 min old: none is granted" in found["page.notice"]
    fresh = look(machine(1), batch=replace(batch, taken_at=NOON - 2)).cells
    assert (fresh["page.stale"], fresh["page.notice"]) == ("", "")


def test_only_what_exists_makes_the_layout():
    one, other = look(), look(holders={"GPU-0": lease("GPU-0")}, now=NOON + 5)
    assert one.layout == other.layout
    assert one.layout != look(machine(2, slices=3)).layout


# Sparklines and figures


def test_a_gap_in_the_readings_is_a_gap_in_the_line():
    samples = [(at, 50.0) for at in (100, 110, 120)] + [(150, None)] + [(at, 0.0) for at in (170, 171, 180)]
    assert sparkline(samples, 190) == "M80 50h1H83M87 100h1H89"
    assert sparkline([], 190) == ""
    assert sparkline([(1, 50.0)], 100_000) == ""


def test_a_step_is_the_mean_of_its_samples():
    assert sparkline([(100, 0.0), (105, 100.0), (110, 130.0)], 119) == "M88 50h1L90 0"


@given(
    st.lists(st.tuples(st.integers(0, 2000), st.none() | st.floats(0, 100)), max_size=60),
    st.integers(0, 2000),
)
def test_a_sparkline_stays_in_its_frame(samples, until):

    path = sparkline(sorted(samples, key=lambda s: s[0]), until)
    for x, y in re.findall(r"[ML](\d+) (\d+)", path):
        assert 0 <= int(x) <= 90
        assert 0 <= int(y) <= 100


def test_a_sparkline_is_made_anew_only_with_a_new_step():
    asked = []
    sparks = Sparks(lambda key, seconds: asked.append(key) or ())
    for at in (1000, 1001, 1009, 1010):
        sparks.of("GPU-0", at)
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("amount", "words"), [(0, "0"), (0.04, "0"), (0.5, "0.5"), (9.4, "9.4"), (9.99, "10"), (71.2, "71")]
)
def test_memory_in_gib(amount, words):
    assert gib(int(amount * GIB)) == words
