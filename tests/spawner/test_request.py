import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpulab_spawner.errors import BadOptions
from gpulab_spawner.placement.request import AtLeast, NoGpu, Slice, WholeGpus, parse_shape

SHAPES = st.one_of(
    st.just(NoGpu()),
    st.builds(WholeGpus, st.integers(1, 64)),
    st.builds(AtLeast, st.integers(1, 4096)),
    st.builds(
        Slice,
        st.sampled_from(["1g.10gb", "1g.10gb+me", "7g.141gb", "1c.3g.40gb", "1g.24gb+me.all", "2g.48gb-me"]),
    ),
)


@given(SHAPES)
def test_a_shape_reads_back_from_its_own_text(shape):
    assert parse_shape(str(shape)) == shape


@pytest.mark.parametrize(
    "text",
    ["", "gpu", "gpu:", "gpu:0", "gpu:-1", "gpu:65", "gpu:01", "gpu:1.5", "gpu:٣", "memory:0",
     "memory:9999999999", "mig:", "mig:1g", "mig:../x", "NONE", "none ", "gpu:1\n", "all"],
)  # fmt: skip
def test_what_is_no_shape_is_refused_and_quoted(text):
    with pytest.raises(BadOptions) as caught:
        parse_shape(text)
    assert repr(text) in caught.value.message
    assert "gpu:N" in caught.value.next_step


@given(st.text(max_size=300))
@example("\U000e0001" * 60)  # each has ten characters when it is quoted
def test_any_text_is_a_shape_or_a_refusal(text):
    try:
        shape = parse_shape(text)
    except BadOptions as refusal:
        assert len(str(refusal)) < 300
    else:
        assert str(shape) == text
