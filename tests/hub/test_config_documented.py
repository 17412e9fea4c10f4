"""config/gpulab.yaml describes every setting with its default, and nothing else."""

import re
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from gpulab_hub.settings import Settings, parse

FILE = Path(__file__).parents[2] / "config/gpulab.yaml"
_SETTING = re.compile(r"^(?P<indent> *)# (?P<setting>[a-z_]+: \S.*)$")


def uncommented(text):
    return "\n".join(_SETTING.sub(r"\g<indent>\g<setting>", line) for line in text.splitlines())


def keys(model, prefix=""):
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from keys(field.annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def documented(data, prefix=""):
    for name, value in data.items():
        section = isinstance(value, dict) and value
        yield from documented(value, f"{prefix}{name}.") if section else [f"{prefix}{name}"]


def test_the_file_as_shipped_gives_the_defaults():
    assert parse(FILE.read_text()) == Settings()


def test_every_line_taken_out_of_its_comment_gives_the_defaults():
    assert parse(uncommented(FILE.read_text())) == Settings()


def test_every_setting_is_there_and_no_other():
    assert sorted(documented(yaml.safe_load(uncommented(FILE.read_text())))) == sorted(keys(Settings))


@pytest.mark.parametrize("key", sorted(keys(Settings)))
def test_every_setting_is_explained_above_its_line(key):
    lines = FILE.read_text().splitlines()
    name = key.rpartition(".")[2]
    pattern = re.compile(rf"^ *(# )?{name}: ")
    where = [n for n, line in enumerate(lines) if pattern.match(line)]
    assert where, f"{key} has no line"
    for n in where:
        above = lines[n - 1].strip()
        assert above.startswith("#"), f"{key} has no explanation above its line"
        assert not _SETTING.match(lines[n - 1]), f"{key} follows {above} without a word of its own"
