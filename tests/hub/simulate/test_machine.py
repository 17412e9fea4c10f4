import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab_hub.simulate import shipped
from gpulab_hub.simulate.machine import parse, place_slices
from gpulab_spawner.errors import ConfigError

MODELS = shipped.models()
H100 = MODELS["h100-80"]


def read(text):
    return parse(text, "mine", MODELS, "mine.yaml")


def layout(machine, gpu=0):
    return [f"{p.profile.name}@{p.start}" for p in machine.gpus[gpu].mig]


@pytest.mark.parametrize("name", shipped.machines())
def test_every_shipped_machine_is_sound_and_described(name):
    machine = shipped.read(name)
    assert machine.name == name
    assert machine.description


def test_the_promised_machines_are_what_they_are_called():
    assert [g.mig for g in shipped.read("2xh100").gpus] == [None, None]
    assert layout(shipped.read("h100-mig"), 1) == [f"1g.10gb@{n}" for n in range(7)]
    assert len(shipped.read("8xa100").gpus) == 8
    assert shipped.read("8xa100").links is None
    assert set(shipped.read("8xh100-nvl").links) == {(0, 1), (2, 3), (4, 5), (6, 7)}
    assert [shipped.read("8xh100-nvl").socket(n) for n in range(8)] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [g.mig is None for g in shipped.read("dgx-h200-mig").gpus] == [True] * 4 + [False] * 4
    assert (shipped.read("none").driver, shipped.read("none").gpus) == (None, ())


def test_count_makes_that_many_with_minors_of_their_own():
    machine = read("gpus: [{model: a100-40, count: 2}, {model: h100-80, minor: 7}, {model: h100-80}]")
    assert [g.minor for g in machine.gpus] == [0, 1, 7, 3]


def test_a_slice_without_a_start_takes_the_first_place_that_is_free():
    machine = read("gpus: [{model: h100-80, mig: [1g.10gb, 3g.40gb, 2g.20gb, 1g.10gb]}]")
    assert layout(machine) == ["1g.10gb@0", "3g.40gb@4", "2g.20gb@2", "1g.10gb@1"]


def test_mig_may_be_on_without_slices():
    assert read("gpus: [{model: h100-80, mig: []}]").gpus[0].mig == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gpus: [", "line 1"),
        ("- a", "the file: it holds a list, not a machine"),
        ("", "gpus: it is missing"),
        ("{}", "gpus: it is missing"),
        ("gpus: [{model: h100-80}]\ngpu: 1", "gpu: there is no such key. Known here: description, driver"),
        ("gpus: [{model: h100-80, migg: []}]", "gpus.0.migg: there is no such key. Known here: model, count"),
        ("gpus: [{modle: h100-80}]", "gpus.0.modle: there is no such key"),
        ("gpus: [{model: h100-90}]", "gpus.0.model: there is no model 'h100-90'. Known: a100-40"),
        ("gpus: [{count: 2}]", "gpus.0.model: it is missing"),
        ("gpus: [{model: h100-80, count: 0}]", "gpus.0.count: 0 is not accepted"),
        ("gpus: [{model: h100-80, count: -1}]", "gpus.0.count: -1 is not accepted"),
        ("gpus: [{model: h100-80, count: '2'}]", "gpus.0.count: '2' is not accepted"),
        ("gpus: [{model: h100-80, count: 64}, {model: h100-80}]", "gpus: 65 GPUs are too many"),
        ("gpus: [{model: h100-80, count: 2, minor: 1}]", "gpus.0.minor: several GPUs cannot share it"),
        ("gpus: [{model: h100-80, minor: 1}, {model: h100-80}]", "gpus: two GPUs have minor 1"),
        ("gpus: [{model: h100-80, mig: true}]", "gpus.0.mig: True is not accepted"),
        ("gpus: [{model: h100-80, mig: [1g.5gb]}]", "gpus.0.mig: '1g.5gb' is no MIG slice of NVIDIA H100"),
        ("gpus: [{model: h100-80, mig: [1g.10gb@x]}]", "'1g.10gb@x' is no MIG slice"),
        (
            "gpus: [{model: h100-80, mig: [1g.10gb@7]}]",
            "1g.10gb@7 cannot begin there; 1g.10gb begins at 0, 1",
        ),
        ("gpus: [{model: h100-80, mig: [3g.40gb@2]}]", "3g.40gb begins at 0, 4"),
        ("gpus: [{model: h100-80, mig: [3g.40gb@0, 1g.10gb@3]}]", "1g.10gb@3 overlaps 3g.40gb@0"),
        (
            "gpus: [{model: h100-80, mig: [7g.80gb, 1g.10gb]}]",
            "there is no room for 1g.10gb beside 7g.80gb@0",
        ),
        ("gpus: [{model: h100-80, mig: [1g.10gb+me, 1g.10gb+me]}]", "holds at most 1 of 1g.10gb+me"),
        ("gpus: [{model: rtx-pro-6000, mig: [1g.24gb+me, 2g.48gb+me.all]}]", "wants the media engines"),
        (
            "gpus: [{model: h100-80, count: 2}]\nnvlink: ring",
            "nvlink: it is not accepted. Write switch",
        ),
        ("gpus: [{model: h100-80, count: 2}]\nnvlink: [[0, 1]]", "nvlink: it is not accepted"),
        (
            "gpus: [{model: h100-80, count: 2}]\nnvlink: [[0, 2, 1]]",
            "nvlink.0: 0 and 2 are no pair that is still free. Name two GPUs of 0 to 1, each pair once",
        ),
        (
            "gpus: [{model: h100-80, count: 3}]\nnvlink: [[0, 1, 12], [2, 0, 12]]",
            "nvlink.1: GPU 0 would have 24 links. NVIDIA H100 80GB HBM3 has 18",
        ),
        ("gpus: [{model: h100-80}]\nsockets: 0", "sockets: 0 is not accepted"),
        ("driver: 470.82.01\ngpus: [{model: h100-80}]", "driver: 470.82.01 does not know NVIDIA H100"),
        ("driver: absent\ngpus: [{model: h100-80}]", "driver: it is absent, but there are GPUs"),
        ("driver: newest\ngpus: []", "driver: 'newest' is not accepted"),
        ("cuda: 13.0\ngpus: []", "cuda: 13.0 is not accepted: Input should be a valid string"),
        ("driver: 2024-13-45\ngpus: []", "month must be in 1..12"),
    ],
)
def test_what_cannot_exist_is_refused_by_file_key_and_value(text, words):
    with pytest.raises(ConfigError) as caught:
        read(text)
    assert str(caught.value).startswith("mine.yaml: ")
    assert words in str(caught.value)


def test_an_unknown_machine_is_refused_with_those_there_are():
    with pytest.raises(
        ConfigError, match=r"no simulated machine '3xh100'\. Shipped: 2xh100, 64xh100, 8xa100"
    ):
        shipped.read("3xh100")


def test_a_missing_file_is_refused_by_its_path(tmp_path):
    with pytest.raises(ConfigError, match=r"absent.yaml: it cannot be read"):
        shipped.read(str(tmp_path / "absent.yaml"))


MODEL = st.sampled_from(list(MODELS.values()))


@given(MODEL, st.data())
def test_a_layout_is_refused_or_fits_the_card(model, data):
    names = st.sampled_from([p.name for p in model.profiles])
    wanted = data.draw(st.lists(st.one_of(names, st.builds("{}@{}".format, names, st.integers(0, 12)))))
    try:
        placed = place_slices(model, wanted)
    except ValueError:
        return
    covered = [place for p in placed for place in p.covers]
    assert len(covered) == len(set(covered))
    assert all(0 <= place < model.memory_slices for place in covered)
    assert sum(p.profile.compute_slices for p in placed) <= model.compute_slices
    assert all(sum(q.profile is p.profile for q in placed) <= p.profile.most for p in placed)
    assert sum(p.profile.exclusive_media for p in placed) <= 1


@given(MODEL)
def test_a_card_holds_as_many_of_a_profile_as_it_says(model):
    for profile in model.profiles:
        assert len(place_slices(model, [profile.name] * profile.most)) == profile.most
        with pytest.raises(ValueError, match=r"no room|at most"):
            place_slices(model, [profile.name] * (profile.most + 1))
