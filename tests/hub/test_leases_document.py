"""docs/leases.md draws the life of a lease as the table of transitions has it, and names every state."""

import re
from pathlib import Path

from gpulab_hub.lifecycle import ENDED, OPEN, TRANSITIONS, Actor, State

TEXT = (Path(__file__).parents[2] / "docs/leases.md").read_text()
ANYBODY = {Actor.SPAWNER, Actor.RECONCILE, Actor.PERSON}


def test_the_diagram_is_the_table_of_transitions():
    arrows = re.findall(r"^ +(\S+) --> (\w+): (.+)$", TEXT, re.MULTILINE)
    drawn = {(before, to): who.removesuffix(" adopts") for before, to, who in arrows}
    assert len(drawn) == len(arrows)
    assert drawn == {
        (before or "[*]", to): "anybody" if who == ANYBODY else ", ".join(a for a in Actor if a in who)
        for (before, to), who in TRANSITIONS.items()
    }
    assert set(re.findall(r"^ +(\w+) --> \[\*\]$", TEXT, re.MULTILINE)) == ENDED


def test_the_table_of_states_is_theirs():
    told = dict(re.findall(r"^\| (\w+) \| .+ \| (held|free) \|$", TEXT, re.MULTILINE))
    assert told == {state: "held" if state in OPEN else "free" for state in State}
