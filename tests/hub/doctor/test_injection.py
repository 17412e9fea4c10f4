import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab_hub.doctor import checks
from gpulab_hub.doctor.facts import CdiFacts, EngineFacts, GpuFacts
from gpulab_hub.doctor.injection import WAYS, choose_injection, unsound

NO_CDI = {"engine": {"version": "20.10.24", "cdi": CdiFacts()}}
NO_LIBRARY = {"gpu": {"driver_library": False}}


def way(facts):
    return choose_injection(facts.gpu, facts.engine, facts.lab.injection)


def test_cdi_comes_first_then_devices_then_the_runtime(sound, but):
    assert way(sound) == "cdi"
    assert way(but(**NO_CDI)) == "devices"
    assert way(but(**NO_CDI, **NO_LIBRARY)) == "nvidia"
    assert way(but(**NO_LIBRARY, engine={"cdi": CdiFacts(), "toolkit": "1.17.7"})) is None


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"engine": {"version": None}}, "Docker does not answer"),
        ({"engine": {"version": "24.0.7"}}, "Docker 24.0.7 has no CDI"),
        ({"engine": {"cdi": CdiFacts()}}, "CDI is off"),
        ({"gpu": {"device_uuids": ()}}, "no device is known"),
        ({"gpu": {"device_uuids": ("GPU-a", "GPU-x", "GPU-y")}}, "no CDI spec names GPU-x and 1 more"),
        ({"gpu": {"driver": "590.44.01"}}, "for driver 580.95.05, and 590.44.01 is loaded"),
    ],
)
def test_why_cdi_cannot_be_taken(but, wrong, words):
    facts = but(**wrong)
    assert words in unsound("cdi", facts.gpu, facts.engine)


def test_a_simulated_machine_takes_cdi_with_our_spec_and_else_devices(but):
    simulated = {"gpu": {"cards": 0, "simulate": "2xh100", "driver_library": None, "control_node": None}}
    assert way(but(**simulated)) == "cdi"
    assert way(but(**simulated, engine={"cdi": CdiFacts(("/etc/cdi",))})) == "devices"
    facts = but(**simulated)
    assert "no simulated GPUs" in unsound("nvidia", facts.gpu, facts.engine)


def test_a_named_way_is_taken_and_its_fault_is_told(but):
    facts = but(lab={"injection": "nvidia"}, engine={"toolkit": "1.16.1"})
    assert way(facts) == "nvidia"
    found = next(f for f in checks.examine(facts) if f.id == "injection")
    assert (found.level, found.next_step) == (
        "fail",
        "Mend it, or set engine.injection: auto in gpulab.yaml.",
    )
    assert "1.16.1 is older than 1.17.8" in found.what


def test_no_way_tells_why_for_each(but):
    facts = but(**NO_LIBRARY, engine={"version": "20.10.24", "cdi": CdiFacts(), "runtimes": ("runc",)})
    found = next(f for f in checks.examine(facts) if f.id == "injection")
    assert found.level == "fail"
    assert all(f"{name}: " in found.what for name in WAYS)


engines = st.builds(
    EngineFacts,
    version=st.sampled_from([None, "20.10.24", "25.0.0", "28.5.1"]),
    runtimes=st.sampled_from([(), ("nvidia", "runc")]),
    toolkit=st.sampled_from([None, "1.17.7", "1.17.8", "1.18.0"]),
    cdi=st.builds(
        CdiFacts,
        directories=st.sampled_from([(), ("/etc/cdi",)]),
        names=st.sampled_from([frozenset(), frozenset({"nvidia.com/gpu=GPU-a"})]),
    ),
)
gpus = st.builds(
    GpuFacts,
    cards=st.integers(0, 2),
    simulate=st.sampled_from([None, "2xh100"]),
    device_uuids=st.sampled_from([(), ("GPU-a",), ("GPU-a", "GPU-b")]),
    driver_library=st.sampled_from([None, False, True]),
    control_node=st.sampled_from([None, False, True]),
)


@given(gpus, engines)
def test_a_chosen_way_is_sound_and_none_before_it_is(gpu, engine):
    chosen = choose_injection(gpu, engine)
    for name in WAYS[: WAYS.index(chosen) if chosen else len(WAYS)]:
        assert unsound(name, gpu, engine)
    assert chosen is None or unsound(chosen, gpu, engine) is None


@given(gpus, engines)
def test_an_old_toolkit_is_never_chosen_by_itself(gpu, engine):
    assert choose_injection(gpu, engine) != "nvidia" or engine.toolkit in ("1.17.8", "1.18.0")
