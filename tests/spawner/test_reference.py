import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulab_spawner.errors import ConfigError
from gpulab_spawner.reference import Reference, parse_reference

DIGEST = "sha256:" + "0a" * 32

components = st.from_regex(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*", fullmatch=True).filter(
    lambda c: len(c) < 30
)
repositories = st.lists(components, min_size=1, max_size=4).map("/".join)
hosts = st.sampled_from(
    ["localhost", "localhost:5000", "r.example", "r.example:5000", "10.0.0.1:80", "[fd00::1]:5000", "HOST"]
)
tags = st.none() | st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", fullmatch=True)
digests = st.none() | st.text("0123456789abcdef", min_size=64, max_size=64).map("sha256:{}".format)


@settings(deadline=None, max_examples=60)
@given(hosts, repositories, tags, digests)
def test_what_is_written_is_read_back(registry, repository, tag, digest):
    wanted = Reference(registry, repository, tag, digest)
    assert parse_reference(str(wanted)) == wanted


@settings(deadline=None, max_examples=60)
@given(st.text(max_size=60))
def test_any_text_is_a_reference_that_reads_back_or_a_worded_error(text):
    try:
        found = parse_reference(text)
    except ConfigError as error:
        assert "is no image reference" in error.message
        assert error.next_step
    else:
        assert str(found) == text


@pytest.mark.parametrize(
    ("text", "pulled"),
    [
        ("debian", ("debian", "latest")),
        ("gpulab/base:1.0", ("gpulab/base", "1.0")),
        ("localhost:5000/a/b", ("localhost:5000/a/b", "latest")),
        ("r.example:5000/a/b:1", ("r.example:5000/a/b", "1")),
        (f"r.example/a/b@{DIGEST}", ("r.example/a/b", DIGEST)),
        (f"r.example:5000/a/b:1@{DIGEST}", ("r.example:5000/a/b", DIGEST)),
    ],
)
def test_the_engine_is_asked_for_the_tag_or_the_whole_digest(text, pulled):
    assert parse_reference(text).pull_arguments() == pulled


def test_only_a_digest_pins():
    assert parse_reference(f"a@{DIGEST}").pinned
    assert not parse_reference("a:1").pinned


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "'' is no repository"),
        ("a:", "'' is no tag"),
        ("a/B", "'a/B' is no repository"),
        ("a@", "'' is no digest"),
        ("a@sha256:0a", "'sha256:0a' is no digest"),
        ("a:1:2", "'1:2' is no tag"),
        ("-h.example/a", "'-h.example' is no registry"),
        ("r.example:port/a", "'r.example:port' is no registry"),
        ("a//b", "'a//b' is no repository"),
        ("a b", "'a b' is no repository"),
        ("a\n", "is no repository"),
        ("../a", "is no registry"),
        ("a" * 300, "its name has 300 characters, more than 255"),
    ],
)
def test_the_part_that_is_wrong_is_named(text, words):
    with pytest.raises(ConfigError) as caught:
        parse_reference(text, "profiles.0.image")
    assert caught.value.message.startswith("profiles.0.image: ")
    assert words in caught.value.message
