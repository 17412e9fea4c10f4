"""docs/admin.md names every shipped machine, and as scriptable only the commands that are."""

import re
from pathlib import Path

import click

from gpulab_hub.cli import main
from gpulab_hub.simulate import shipped

TEXT = (Path(__file__).parents[2] / "docs/admin.md").read_text()


def options(words):
    command = main
    for word in words.split():
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(command), word)
        assert command is not None, words
    return {name for parameter in command.params for name in parameter.opts}


def test_the_row_of_simulate_names_every_shipped_machine():
    (row,) = re.findall(r"^\| `--simulate MACHINE` \|(.*)$", TEXT, re.MULTILINE)
    assert set(re.findall(r"`([^`]+)`", row)) == set(shipped.machines())


def test_the_commands_for_scripts_print_json():
    (listed,) = re.findall(r"Those that show something \(([^)]*)\) take `--json`", TEXT)
    named = re.findall(r"`([^`]+)`", listed)
    assert named
    assert [words for words in named if "--json" not in options(words)] == []
