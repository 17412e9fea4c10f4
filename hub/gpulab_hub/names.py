"""Which user names the lab carries, and how they are shown in logs.

A name is normalised once: capitals become small letters, as JupyterHub does by default, so `Ada` and `ada`
are one person whatever the keyboard or the provider sends. Nothing else is folded. A name that Unicode's NFC
would change is refused instead of repaired: two spellings that look the same must never meet in one account,
and a provider could otherwise reach somebody's account with the other spelling.

The rest is refused because something downstream cannot carry it: JupyterHub itself (slashes, dots alone,
spaces at the ends), addresses and cookies (the length of a name's escaped form), or people reading a log
(control and invisible characters).
"""

from __future__ import annotations

import unicodedata
from urllib.parse import quote

from gpulab_spawner.errors import NameRefused

MAX_CHARACTERS = 200
MAX_ESCAPED = 208
"""Longest escaped form: `jupyterhub-user-NAME-SERVER` goes in a column of 255, a server's name has 30."""
_MARKS = "._+@-'~"


def canonical(raw: str) -> str:
    """Return the name that JupyterHub and the lab use for what somebody typed.

    Raises:
        NameRefused: The lab does not carry such a name; the message says why.
    """
    name = raw.lower() if unicodedata.is_normalized("NFC", raw) else raw
    trouble = problem(name)
    if trouble:
        raise NameRefused(
            f"The name {shown(raw)} is not accepted: {trouble}.",
            next_step=f"Letters, digits, spaces inside and {' '.join(_MARKS)} are accepted.",
        )
    return name


def problem(name: str) -> str | None:
    """Return why a name is not carried, None if it is."""
    if not name:
        return "it is empty"
    if len(name) > MAX_CHARACTERS:
        return f"it has {len(name)} characters and {MAX_CHARACTERS} are the most"
    if name != name.strip():
        return "it starts or ends with a space"
    strange = next((c for c in name if not _carried(c)), None)
    if strange is not None:
        return f"it holds {_named(strange)}"
    if not unicodedata.is_normalized("NFC", name):
        return "its accents are separate characters; write it in composed form (NFC)"
    if set(name) == {"."}:
        return "dots alone are no name in an address"
    if unicodedata.category(name[0]).startswith("M"):
        return "it starts with an accent that belongs to no letter"
    if name != name.lower():
        return "it has capitals"
    escaped = len(quote(name, safe=""))
    if escaped > MAX_ESCAPED:
        return f"in addresses it takes {escaped} characters and {MAX_ESCAPED} are the most"
    return None


def shown(text: str, limit: int = 32) -> str:
    """Return text for a log line or a message: quoted, cut, control and invisible characters escaped."""
    cut = text if len(text) <= limit else f"{text[: limit // 2]}..."
    safe = "".join(c if c.isprintable() and c not in "\\'" else _escape(c) for c in cut)
    return f"'{safe}'" if cut == text else f"'{safe}' ({len(text)} characters)"


def _carried(character: str) -> bool:
    category = unicodedata.category(character)
    return category[0] in "LM" or category == "Nd" or character == " " or character in _MARKS


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii") if character not in "\\'" else f"\\{character}"


def _named(character: str) -> str:
    if character == "/":
        return "a slash"
    if character.isprintable() and character != " ":
        return character
    return f"the character U+{ord(character):04X}"
