import pytest
from jupyterhub.spawner import SpawnException
from jupyterhub.utils import format_exception

from gpulab_spawner import errors
from gpulab_spawner.refusal import SpawnRefused, refused_to_the_hub

REFUSAL = errors.NoCapacity("2 GPUs, <b>none</b> free & 100% used.", next_step="Choose 1 <GPU>.")
WORDS = "2 GPUs, <b>none</b> free & 100% used. Choose 1 <GPU>. [no_capacity]"

HTML = (
    '<span class="lab-refusal">'
    "<strong>2 GPUs, &lt;b&gt;none&lt;/b&gt; free &amp; 100% used.</strong> "
    "<span>Choose 1 &lt;GPU&gt;.</span> <code>no_capacity</code></span>"
)


def test_every_place_of_the_hub_finds_the_words():
    refused = SpawnRefused(REFUSAL)
    assert isinstance(refused, SpawnException)
    assert refused.refusal is REFUSAL
    assert (refused.status_code, refused.reason) == (409, "no_capacity")
    assert refused.message == WORDS  # REST
    text, html = format_exception(refused, only_jupyterhub=True)  # form, progress, spawn-pending
    assert text == WORDS
    assert html == refused.message_html == HTML


def test_a_refusal_without_a_next_step_has_no_empty_part():
    assert SpawnRefused(errors.LeaseConflict("It runs.")).jupyterhub_html_message == (
        '<span class="lab-refusal"><strong>It runs.</strong> <code>lease_conflict</code></span>'
    )


def kinds(kind):
    return [kind, *(k for sub in kind.__subclasses__() for k in kinds(sub))]


@pytest.mark.parametrize("kind", kinds(errors.Refusal))
def test_the_reason_fits_an_http_status_line_and_a_metric_label(kind):
    refused = SpawnRefused(kind("No."))
    assert refused.reason.isascii()
    assert refused.reason.replace("_", "").isalpha()
    assert 400 <= refused.status_code < 600


def test_only_refusals_are_reworded():
    with pytest.raises(SpawnRefused) as caught, refused_to_the_hub():
        raise REFUSAL
    assert caught.value.__cause__ is REFUSAL
    with pytest.raises(errors.ConfigError), refused_to_the_hub():
        raise errors.ConfigError("a.b", "it is wrong")
