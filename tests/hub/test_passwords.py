import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab_hub import passwords
from gpulab_spawner.errors import PasswordRefused


@pytest.mark.parametrize(
    ("password", "words"),
    [
        ("short", "has 5 characters; at least 10"),
        ("", "has 0 characters"),
        ("x", "has 1 character;"),
        ("aaaaaaaaaaaa", "guessed first"),
        ("abcabcabcabc", "guessed first"),
        ("1234567890", "guessed first"),
        ("0987654321", "guessed first"),
        ("qwertyuiop", "guessed first"),
        ("Password123!", "guessed first"),
        ("passwordpassword", "guessed first"),
        ("JupyterHub2026", "guessed first"),
        ("1029384756", "guessed first"),
        ("19991231!!", "guessed first"),
        ("i am grace.hopper", "holds your name"),
        ("GRACE.HOPPER-77x", "holds your name"),
        ("x" * 1025, "over 1024 bytes"),
        ("ü" * 513, "over 1024 bytes"),
    ],
)
def test_a_bad_password_is_refused_with_the_reason(password, words):
    with pytest.raises(PasswordRefused) as caught:
        passwords.accept(password, password, "grace.hopper@example.org", 10)
    assert words in caught.value.message
    assert caught.value.next_step


@pytest.mark.parametrize(
    "password", ["correct horse battery", "kite-olive-7-moss", "ünïcødé wörds", "x1!" + "ab7 " * 250]
)
def test_other_passwords_are_accepted(password):
    passwords.accept(password, password, "ada", 10)


def test_two_that_differ_are_refused():
    with pytest.raises(PasswordRefused, match="differ"):
        passwords.accept("kite-olive-7-moss", "kite-olive-7-moos", "ada", 10)


def test_a_short_name_may_be_part_of_a_word():
    passwords.accept("canadian kite moss", "canadian kite moss", "ada", 10)


def test_composed_and_decomposed_typing_is_the_same_password():
    assert passwords.folded("e\u0301te") == passwords.folded("\u00e9te")


@given(st.text(max_size=1500))
def test_the_length_limit_holds_for_what_is_hashed(password):
    if not passwords.too_long(password):
        assert len(passwords.folded(password)) <= passwords.MAX_BYTES
