from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab_spawner.errors import NoCapacity
from gpulab_spawner.placement.allocator import place
from gpulab_spawner.placement.devices import Device, slice_key
from gpulab_spawner.placement.request import AtLeast, NoGpu, Slice, WholeGpus, parse_shape
from gpulab_spawner.placement.shortage import fits
from gpulab_spawner.placement.stock import GIB, Stock

H100 = 81559 * 2**20
PROFILES = {"1g.10gb": 9984 * 2**20, "2g.20gb": 20096 * 2**20, "3g.40gb": 40448 * 2**20}


def whole(n, memory=H100, model="NVIDIA H100 80GB HBM3", **fields):
    return Device(
        f"GPU-{n}", f"GPU-{n}", f"GPU-{n}", model=model, memory_bytes=memory, index=n, minor=n, **fields
    )


def piece(gpu, start, profile="1g.10gb", **fields):
    return Device(
        key=slice_key(f"GPU-{gpu}", profile, start),
        uuid=f"MIG-{gpu}-{profile}-{start}",
        gpu_uuid=f"GPU-{gpu}",
        model="NVIDIA H100 80GB HBM3",
        profile=profile,
        start=start,
        memory_bytes=fields.pop("memory_bytes", PROFILES[profile]),
        index=gpu,
        **fields,
    )


def keys(devices):
    return [d.key for d in devices]


@st.composite
def machines(draw):
    """Devices of up to five GPUs, whole or sliced, some sick or of unknown memory, in any order."""
    devices = []
    for gpu in range(draw(st.integers(0, 5))):
        problem = st.sampled_from([None, None, None, "fell off the bus"])
        if draw(st.booleans()):
            memory = draw(st.sampled_from([None, 24 * GIB, H100]))
            model = draw(st.sampled_from([None, "NVIDIA A10", "NVIDIA H100 80GB HBM3"]))
            devices.append(whole(gpu, memory, model, problem=draw(problem)))
        else:
            for start in range(draw(st.integers(0, 7))):
                profile = draw(st.sampled_from(sorted(PROFILES)))
                memory = draw(st.sampled_from([None, PROFILES[profile], PROFILES[profile]]))
                devices.append(piece(gpu, start, profile, memory_bytes=memory, problem=draw(problem)))
    if draw(st.booleans()):
        devices = [replace(d, index=None) for d in devices]
    return draw(st.permutations(devices))


SHAPES = st.one_of(
    st.just(NoGpu()),
    st.builds(WholeGpus, st.integers(1, 4)),
    st.builds(Slice, st.sampled_from([*PROFILES, "7g.80gb"])),
    st.builds(AtLeast, st.integers(1, 90)),
)


@st.composite
def requests(draw):
    devices = draw(machines())
    taken = draw(st.sets(st.sampled_from(keys(devices)))) if devices else set()
    return devices, draw(SHAPES), dict.fromkeys(taken, "taken by li") | {"GPU-gone/1g.10gb@0": "taken by li"}


def free_of(devices, shape, withheld):
    return [d for d in devices if fits(d, shape) and d.problem is None and d.key not in withheld]


@given(requests())
def test_what_is_given_is_free_healthy_fitting_and_each_once(request_):
    devices, shape, withheld = request_
    try:
        given_ = place(devices, shape, withheld)
    except NoCapacity:
        return
    assert len(given_) == (0 if shape == NoGpu() else shape.count if isinstance(shape, WholeGpus) else 1)
    assert len(set(keys(given_))) == len(given_)
    assert all(d in free_of(devices, shape, withheld) for d in given_)


@given(requests())
def test_a_request_is_granted_exactly_if_enough_devices_are_free(request_):
    devices, shape, withheld = request_
    needed = 0 if shape == NoGpu() else shape.count if isinstance(shape, WholeGpus) else 1
    enough = len(free_of(devices, shape, withheld)) >= needed
    try:
        place(devices, shape, withheld)
    except NoCapacity as refusal:
        assert not enough
        details = refusal.details
        assert details["free"] < details["asked"] == needed
        assert details["absent"] == (details["total"] < needed)
        assert details["free"] <= details["total"] - sum(r["count"] for r in details["reasons"])
    else:
        assert enough


@given(requests(), st.randoms())
def test_the_order_in_which_devices_come_changes_nothing(request_, random):
    devices, shape, withheld = request_
    again = list(devices)
    random.shuffle(again)

    def answer(listed):
        try:
            return keys(place(listed, shape, withheld))
        except NoCapacity as refusal:
            return refusal.as_json()

    assert answer(devices) == answer(again) == answer(Stock.of(again))


@given(requests())
def test_a_wish_of_memory_gets_the_tightest_slice_and_else_the_tightest_gpu(request_):
    devices, shape, withheld = request_
    if not isinstance(shape, AtLeast):
        return
    free = free_of(devices, shape, withheld)
    if free:
        (device,) = place(devices, shape, withheld)
        assert (not device.is_slice, device.memory_bytes) == min(
            (not d.is_slice, d.memory_bytes) for d in free
        )


@given(requests())
def test_whole_gpus_are_of_one_model_wherever_one_model_has_enough(request_):
    devices, shape, withheld = request_
    if not isinstance(shape, WholeGpus):
        return
    free = free_of(devices, shape, withheld)
    models = {(d.memory_bytes is None, d.memory_bytes or 0, d.model or "") for d in free}

    def of(model):
        return [d for d in free if (d.memory_bytes is None, d.memory_bytes or 0, d.model or "") == model]

    enough = [m for m in sorted(models) if len(of(m)) >= shape.count]
    if enough:
        assert all(d in of(enough[0]) for d in place(devices, shape, withheld))


@given(requests())
def test_a_slice_comes_from_a_gpu_in_use_where_one_will_do(request_):
    devices, shape, withheld = request_
    free = free_of(devices, shape, withheld)
    if not isinstance(shape, Slice) or not free:
        return
    in_use = {d.gpu_uuid for d in devices if d.key in withheld}
    (device,) = place(devices, shape, withheld)
    assert device.gpu_uuid in in_use or not any(d.gpu_uuid in in_use for d in free)


@given(requests())
def test_everything_that_a_refusal_suggests_would_be_granted(request_):
    devices, shape, withheld = request_
    try:
        place(devices, shape, withheld)
    except NoCapacity as refusal:
        for text in refusal.details["free_instead"]:
            assert parse_shape(text) != shape
            place(devices, parse_shape(text), withheld)


def test_of_two_untouched_gpus_the_first_by_index_is_opened():
    devices = [piece(2, 0), piece(1, 3), piece(1, 0)]
    assert keys(place(devices, Slice("1g.10gb"), {})) == ["GPU-1/1g.10gb@0"]


def test_a_gpu_already_opened_is_filled_before_another_one():
    devices = [piece(gpu, start) for gpu in (0, 1) for start in range(7)]
    assert keys(place(devices, Slice("1g.10gb"), {"GPU-1/1g.10gb@0": "x"})) == ["GPU-1/1g.10gb@1"]


def test_of_several_opened_gpus_the_most_used_by_memory_is_filled():
    devices = [piece(gpu, start) for gpu in (0, 1) for start in range(7)]
    taken = [(0, 0), (0, 4), (1, 0), (1, 1), (1, 4)]
    withheld = {f"GPU-{gpu}/1g.10gb@{start}": "x" for gpu, start in taken}
    assert keys(place(devices, Slice("1g.10gb"), withheld)) == ["GPU-1/1g.10gb@5"]


def test_a_slice_serves_a_wish_of_memory_before_a_tighter_whole_gpu():
    devices = [whole(0, 24 * GIB, "NVIDIA A10"), piece(1, 0, "3g.40gb"), piece(1, 4, "2g.20gb")]
    assert keys(place(devices, AtLeast(20), {})) == ["GPU-1/3g.40gb@0"]
    assert keys(place(devices, AtLeast(20), {"GPU-1/3g.40gb@0": "x"})) == ["GPU-0"]
    assert keys(place(devices, AtLeast(19), {})) == ["GPU-1/2g.20gb@4"]


def test_a_wish_of_memory_is_kept_to_the_byte():
    assert keys(place([whole(0, 80 * GIB)], AtLeast(80), {})) == ["GPU-0"]
    with pytest.raises(NoCapacity):
        place([whole(0, 80 * GIB - 1)], AtLeast(80), {})


def test_of_two_keys_alike_the_sick_one_counts():
    with pytest.raises(NoCapacity, match="fell off"):
        place([whole(0), replace(whole(0), problem="fell off")], WholeGpus(1), {})


def test_small_cards_are_given_before_large_ones():
    devices = [whole(0), whole(1, 24 * GIB, "NVIDIA A10"), whole(2)]
    assert keys(place(devices, WholeGpus(1), {})) == ["GPU-1"]
    assert keys(place(devices, WholeGpus(2), {})) == ["GPU-0", "GPU-2"]
    assert keys(place(devices, WholeGpus(3), {})) == ["GPU-1", "GPU-0", "GPU-2"]


def test_unknown_memory_promises_none():
    with pytest.raises(NoCapacity, match="no GPU or slice with 1 GiB"):
        place([whole(0, None)], AtLeast(1), {})
    assert keys(place([whole(0, None)], WholeGpus(1), {})) == ["GPU-0"]


@pytest.mark.parametrize(
    ("devices", "shape", "withheld", "words"),
    [
        ([whole(0)], WholeGpus(1), {"GPU-0": "taken by ada until 15:40"},
         "You asked for 1 GPU, and the only one is not free (taken by ada until 15:40). "
         "It may be free at 15:40. Start a server without GPUs (none), or try again later."),
        ([whole(0), whole(1), whole(2, problem="fell off the bus")], WholeGpus(2), {"GPU-0": "taken by ada"},
         "You asked for 2 GPUs, and 1 of the 3 is free (1 taken by ada, 1 out of order: fell off the bus). "
         "Enough may be free at 15:40. Free now: 1 GPU (gpu:1). Choose this, or try again later."),
        ([whole(0)], WholeGpus(2), {},
         "You asked for 2 GPUs, and this machine has 1 whole GPU. Free now: 1 GPU (gpu:1). Choose this."),
        ([], WholeGpus(1), {},
         "You asked for 1 GPU, and this machine has no whole GPU. Start a server without GPUs (none)."),
        ([piece(0, 0), piece(0, 1)], Slice("3g.40gb"), {},
         "This machine has no MIG slice 3g.40gb. Free now: 2 slices 1g.10gb (mig:1g.10gb). Choose this."),
        ([piece(1, s) for s in range(7)], Slice("1g.10gb"),
         {f"GPU-1/1g.10gb@{s}": f"cordoned: {'abcde'[s // 2]}" for s in range(7)},
         "You asked for a slice 1g.10gb, and none of the 7 is free (2 cordoned: a, 2 cordoned: b, "
         "2 cordoned: c, 1 for other reasons). Start a server without GPUs (none), or try again later."),
        ([whole(0), piece(1, 0)], AtLeast(20), {"GPU-0": "taken by ada"},
         "You asked for 20 GiB of GPU memory, and the only one that has it is not free (taken by ada). It "
         "may be free at 15:40. Free now: 9 GiB of GPU memory (memory:9), 1 slice 1g.10gb (mig:1g.10gb). "
         "Choose one of these, or try again later."),
        ([whole(0), piece(1, 0)], AtLeast(100), {"GPU-1/1g.10gb@0": "x", "GPU-0": "y"},
         "This machine has no GPU or slice with 100 GiB of GPU memory: the largest has 79.6 GiB. "
         "Start a server without GPUs (none)."),
    ],
)  # fmt: skip
def test_a_refusal_says_what_is_taken_until_when_and_what_fits_instead(devices, shape, withheld, words):
    with pytest.raises(NoCapacity) as caught:
        place(
            devices,
            shape,
            withheld,
            end_of={"GPU-0": 56400.0}.get,
            say_time=lambda at: {56400.0: "15:40"}[at],
        )
    assert str(caught.value) == words


def test_a_refusal_suggests_only_what_the_profile_offers():
    with pytest.raises(NoCapacity) as caught:
        place([whole(0), piece(1, 0)], Slice("2g.20gb"), {}, offered=lambda shape: shape == WholeGpus(1))
    assert caught.value.details["free_instead"] == ["gpu:1"]
    with pytest.raises(NoCapacity, match="Choose another environment"):
        place([whole(0)], Slice("2g.20gb"), {}, offered=lambda shape: False)


@pytest.mark.parametrize(("ends", "at"), [([9.0, 7.0, 8.0], 8.0), ([7.0], None)])
def test_enough_may_be_free_when_the_last_needed_end_comes(ends, at):
    devices = [whole(n) for n in range(4)]
    with pytest.raises(NoCapacity) as caught:
        place(
            devices,
            WholeGpus(3),
            {f"GPU-{n}": "taken by ada" for n in range(3)},
            end_of={f"GPU-{n}": end for n, end in enumerate(ends)}.get,
        )
    assert caught.value.details["may_fit_at"] == at


def test_a_long_reason_is_cut():
    with pytest.raises(NoCapacity) as caught:
        place([whole(0)], WholeGpus(1), {"GPU-0": "cordoned: " + "x" * 500})
    assert len(caught.value.message) < 200


def test_pairs_of_requests_never_share_a_device():
    devices = [piece(1, s) for s in range(7)] + [whole(0)]
    withheld, given_ = {}, []
    for _ in range(8):
        (device,) = place(devices, AtLeast(8), withheld)
        withheld[device.key] = "taken"
        given_.append(device.key)
    assert all(a != b for a, b in combinations(given_, 2))
    assert given_[-1] == "GPU-0"
