import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab_spawner.errors import BadOptions, NotOffered, Refusal
from gpulab_spawner.form import (
    MAX_RUNTIME,
    MIN_RUNTIME,
    Choice,
    memory_field,
    options_from_form,
    options_from_query,
    parse_options,
    parse_runtime,
)
from gpulab_spawner.placement.request import AtLeast, NoGpu, Slice, WholeGpus
from gpulab_spawner.profiles import Defaults, read_profiles

CATALOGUE = read_profiles(
    [
        {"display_name": "PyTorch", "slug": "pt", "default": True, "gpu": ["none", "gpu:2", "mig", "memory"]},
        {"display_name": "Big", "slug": "big", "gpu": ["gpu:4", "mig:1g.10gb", "memory:20"]},
    ],
    Defaults(image="lab/base", memory_bytes=4 << 30),
)
PT, BIG = CATALOGUE.profiles

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
near_options = st.dictionaries(
    st.sampled_from(["profile", "shape", "runtime", "image", "unlisted_choice"]) | st.text(),
    st.sampled_from(["pt", "big", "none", "gpu:2", "gpu:4", "mig:1g.10gb", "memory:20", "4h", ""])
    | json_values,
)


@pytest.mark.parametrize(
    ("options", "choice"),
    [
        (None, Choice(PT, NoGpu())),
        ({}, Choice(PT, NoGpu())),
        ({"profile": "big"}, Choice(BIG, WholeGpus(4))),
        ({"shape": "gpu:2"}, Choice(PT, WholeGpus(2))),
        ({"profile": "pt", "shape": "mig:3g.40gb", "runtime": "4h"}, Choice(PT, Slice("3g.40gb"), 14400)),
        ({"profile": "big", "shape": "memory:20"}, Choice(BIG, AtLeast(20))),
    ],
)
def test_options_that_fit(options, choice):
    assert parse_options(options, CATALOGUE) == choice


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "The options are a list, not an object."),
        ("gpu:1", "The options are a text, not an object."),
        (True, "The options are true, not an object."),
        ({"image": "evil"}, "There is no option 'image'."),
        ({"unlisted_choice": "evil"}, "There is no option 'unlisted_choice'."),
        ({"memory_gib": "4"}, "There is no option 'memory_gib'."),
        ({"shape": None}, "The option shape is null, not a text."),
        ({"profile": 1}, "The option profile is a number, not a text."),
        ({"runtime": ["4h"]}, "The option runtime is a list, not a text."),
        ({"profile": "PT"}, "There is no environment 'PT'."),
        ({"shape": "gpu:02"}, "'gpu:02' is not a GPU shape."),
        ({"shape": ""}, "'' is not a GPU shape."),
        ({"runtime": "4 hours"}, "'4 hours' is not a runtime."),
        ({1: "x"}, "There is no option '1'."),
    ],
)
def test_options_that_do_not_fit_are_refused_by_name(options, words):
    with pytest.raises(BadOptions) as caught:
        parse_options(options, CATALOGUE)
    assert caught.value.message == words
    assert caught.value.next_step


def test_a_shape_that_the_profile_does_not_offer_is_refused_with_what_it_offers():
    with pytest.raises(NotOffered) as caught:
        parse_options({"profile": "big", "shape": "gpu:2"}, CATALOGUE)
    assert caught.value.message == "Big does not offer gpu:2."
    assert caught.value.next_step == "It offers gpu:4, mig:1g.10gb and memory:20."
    with pytest.raises(NotOffered, match=r"It offers none, gpu:2, mig:PROFILE and memory:GIB\."):
        parse_options({"shape": "gpu:1"}, CATALOGUE)


@pytest.mark.parametrize(
    ("text", "seconds"), [("5m", 300), ("90m", 5400), ("4h", 14400), ("2d", 172800), ("30d", MAX_RUNTIME)]
)
def test_runtimes(text, seconds):
    assert parse_runtime(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "4m", "31d", "721h", "04h", "1.5h", "-4h", "4h\n", "٤h", "4", "h", "9999999m", "4H"]
)
def test_runtimes_outside_of_5_minutes_to_30_days_are_refused(text):
    with pytest.raises(BadOptions, match="from 5m to 30d"):
        parse_runtime(text)


@given(json_values | near_options)
def test_any_json_value_is_a_choice_or_a_bounded_refusal(value):
    try:
        choice = parse_options(value, CATALOGUE)
    except Refusal as refusal:
        assert isinstance(refusal, BadOptions | NotOffered)
        assert len(refusal.sentence()) < 4000
        json.dumps(refusal.as_json())
    else:
        assert choice.profile.offers(choice.shape)
        assert choice.runtime_seconds is None or MIN_RUNTIME <= choice.runtime_seconds <= MAX_RUNTIME


@given(
    profile=st.sampled_from(CATALOGUE.profiles),
    gib=st.integers(1, 4096),
    runtime=st.sampled_from(["", "1h", "4h", "8h", "24h"]),
    data=st.data(),
)
def test_whatever_the_form_can_send_the_schema_accepts(profile, gib, runtime, data):
    shapes = [str(s) for s in profile.shapes] + ["mig:2g.20gb"] * profile.any_slice
    shapes += ["memory"] * profile.any_memory
    shape = data.draw(st.sampled_from(shapes))
    fields = {
        "_xsrf": ["token"],
        "profile": [profile.slug],
        "shape": [shape],
        "runtime": [runtime],
    }
    fields |= {memory_field(p.slug): [str(gib) if p is profile else "7"] for p in CATALOGUE.profiles}
    choice = parse_options(options_from_form(fields), CATALOGUE)
    assert choice.profile is profile
    assert choice.shape == AtLeast(gib) if shape == "memory" else str(choice.shape) == shape
    assert (choice.runtime_seconds is None) == (runtime == "")


def test_fields_left_empty_count_as_not_sent():
    assert options_from_form({"profile": [""], "shape": ["none"], "memory_gib": [""], "runtime": [" "]}) == {
        "shape": "none"
    }


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"image": ["x"]}, "no field 'image'"),
        ({"unlisted_choice": ["x"]}, "no field 'unlisted_choice'"),
        ({"shape_file": [{"filename": "x"}]}, "no field 'shape_file'"),
        ({"shape": ["none", "gpu:2"]}, "'shape' must be sent once"),
        ({"shape": []}, "'shape' must be sent once"),
        ({"shape": [b"none"]}, "'shape' must be sent once"),
        ({"shape": "none"}, "'shape' must be sent once"),
        ({"memory_gib_x": ["4"]}, "no field 'memory_gib_x'"),
        ({"shape": ["memory"], "memory_gib:pt": ["4"]}, "You did not say how much"),
        ({"shape": ["memory"]}, "You did not say how much GPU memory"),
        ({"shape": ["memory"], "memory_gib": ["0"]}, "'0' is not a number of GiB"),
        ({"shape": ["memory"], "memory_gib": ["20.5"]}, "'20.5' is not a number of GiB"),
        ({"shape": ["memory"], "memory_gib": ["4097"]}, "1 to 4096"),
        ({"shape": ["memory"], "memory_gib": ["²"]}, "is not a number of GiB"),
    ],
)
def test_forms_that_are_not_ours_are_refused(fields, words):
    with pytest.raises(BadOptions, match=words):
        options_from_form(fields)


def test_a_query_is_read_like_the_form_but_never_takes_the_address_of_a_page_for_a_request():
    assert options_from_query({"profile": ["pt"], "shape": ["memory"], "memory_gib": ["020"]}) == {
        "profile": "pt",
        "shape": "memory:20",
    }
    with pytest.raises(BadOptions, match="no field '_xsrf'"):
        options_from_query({"_xsrf": ["token"]})


@given(st.dictionaries(st.text(), st.lists(st.text() | st.binary() | st.none())))
def test_any_form_is_options_or_a_bounded_refusal(fields):
    try:
        options = options_from_form(fields)
    except BadOptions as refusal:
        assert len(refusal.sentence()) < 4000
    else:
        assert set(options) <= {"profile", "shape", "runtime"}


def test_a_profile_of_slices_alone_wants_to_be_told_which():
    slices = read_profiles([{"display_name": "Slices", "gpu": ["mig"]}], Defaults("lab/base", 4 << 30))
    with pytest.raises(BadOptions, match="starts with a GPU only, and you did not say which") as caught:
        parse_options({}, slices)
    assert caught.value.next_step == "It offers mig:PROFILE."
    assert parse_options({"shape": "mig:1g.10gb"}, slices).shape == Slice("1g.10gb")
