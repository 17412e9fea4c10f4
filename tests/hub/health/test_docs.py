"""docs/health.md says of every XID what the catalogue says, and of no other."""

import re
from pathlib import Path

from gpulab_hub.health.xid import CATALOGUE

TEXT = (Path(__file__).parents[3] / "docs/health.md").read_text()


def numbers(cell):
    for part in cell.split(", "):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def test_the_table_of_xids_is_the_catalogue():
    rows = re.findall(r"^\| ([\d, -]+) \| (.+) \| (.+) \| (.+) \|$", TEXT, re.MULTILINE)
    told = {n: (meaning, whose, deed) for cell, meaning, whose, deed in rows for n in numbers(cell)}
    assert told == {n: (x.meaning, str(x.whose), str(x.deed)) for n, x in CATALOGUE.items()}


def test_settings_that_the_text_names_are_there():
    from gpulab_hub.settings import Health

    named = set(re.findall(r"`(?:health\.)?([a-z]+(?:_[a-z]+)+)(?:: true)?`", TEXT))
    assert named <= set(Health.model_fields)
    assert {"cordon_xids", "ignore_xids", "probe_seconds"} <= named
