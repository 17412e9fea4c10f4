"""Which new passwords are accepted.

Length is what counts; there are no classes of characters. Refused besides short ones are what guessers try
first: the commonest passwords, one pattern repeated, runs along the keyboard or the alphabet, and the
person's own name.
"""

from __future__ import annotations

import unicodedata

from gpulab_spawner.errors import PasswordRefused

MAX_BYTES = 1024
_LONGER = "Several words that mean nothing together make a good one."
_RUNS = (
    "abcdefghijklmnopqrstuvwxyz",
    "01234567890",
    "1234567890",
    "qwertyuiop",
    "qwertzuiop",
    "azertyuiop",
    "asdfghjkl",
    "zxcvbnm",
    "1qaz2wsx3edc4rfv5tgb6yhn7ujm8ik9ol0p",
    "1q2w3e4r5t6y7u8i9o0p",
    "q1w2e3r4t5y6u7i8o9p0",
    "1029384756",
)
_WORDS = (
    "password passw0rd passwort motdepasse contrasena parola letmein letmeinplease welcome iloveyou "
    "trustno1 changeme changemenow secret default administrator adminadmin administrador superman batman "
    "sunshine princess football baseball basketball dragon monkey shadow master michael jordan liverpool "
    "chelsea arsenal starwars pokemon minecraft computer internet samsung whatever mustang access hello "
    "charlie donald freedom qwerty qwertz azerty abc login guest user test testtest jupyter jupyterhub "
    "jupyterlab notebook python gpulab nvidia server"
)
_COMMON = frozenset(_WORDS.split())


def folded(password: str) -> bytes:
    """Return a password as it is hashed: in NFKC, since keyboards compose accents differently."""
    return _same(password).encode("utf-8", "surrogatepass")


def too_long(password: str) -> bool:
    """Return whether a password is over the limit, which bounds the work of hashing it."""
    return len(password) > MAX_BYTES or len(folded(password)) > MAX_BYTES


def accept(password: str, again: str, name: str, min_length: int) -> None:
    """Accept a new password, or say what is wrong with it.

    Args:
        password: The password.
        again: The second typing of it.
        name: Name of its owner.
        min_length: Least number of characters.

    Raises:
        PasswordRefused: It breaks a rule, or the two differ.
    """
    if too_long(password):
        raise PasswordRefused(
            f"The password is over {MAX_BYTES} bytes long.", next_step="Choose a shorter one."
        )
    typed = _same(password)
    if len(typed) < min_length:
        raise PasswordRefused(
            f"The password has {_count(len(typed))}; at least {min_length} are needed.", next_step=_LONGER
        )
    if password != again:
        raise PasswordRefused("The two passwords differ.", next_step="Type the same one twice.")
    if _guessed_first(typed.lower()):
        raise PasswordRefused(
            "This password is among those that are guessed first.", next_step=f"Choose another. {_LONGER}"
        )
    if _tells(typed.lower(), name):
        raise PasswordRefused("The password holds your name.", next_step=f"Choose another. {_LONGER}")


def _same(password: str) -> str:
    return unicodedata.normalize("NFKC", password)


def _guessed_first(password: str) -> bool:
    if _repeats(password) or any(password in run * 2 or password[::-1] in run * 2 for run in _RUNS):
        return True
    # A common word stays common with digits and marks around it: Password123!
    core = password.strip("0123456789!?.,-_#$@*+ ")
    if len(core) < 2:
        # Dates and telephone numbers.
        return len(password) < 16
    return core in _COMMON or any(core == word * 2 for word in _COMMON)


def _repeats(password: str) -> bool:
    """Whether one pattern of up to four characters makes the whole."""
    return any(
        len(password) > size and (password[:size] * len(password))[: len(password)] == password
        for size in range(1, 5)
    )


def _tells(password: str, name: str) -> bool:
    parts = (name, name.partition("@")[0])
    return any(len(part) >= 4 and part in password for part in parts)


def _count(number: int) -> str:
    return "1 character" if number == 1 else f"{number} characters"
