"""The locked requirements are whole: every dependency, pinned, with hashes, from nowhere in particular."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

SOURCE = Path(__file__).parents[3]
PROJECT = tomllib.loads((SOURCE / "pyproject.toml").read_text())
NEEDED = [
    *PROJECT["project"]["dependencies"],
    *PROJECT["project"]["optional-dependencies"]["postgresql"],
    *PROJECT["build-system"]["requires"],
]


def pins(name):
    text = (SOURCE / "deploy" / name).read_text()
    return {canonicalize_name(n): v for n, v in re.findall(r"(?m)^([A-Za-z0-9._-]+)==([^\s;\\]+)", text)}


@pytest.mark.parametrize("wish", NEEDED)
def test_every_dependency_is_pinned_within_its_bounds(wish):
    requirement = Requirement(wish)
    pinned = pins("requirements.txt")
    assert canonicalize_name(requirement.name) in pinned, "renew deploy/requirements.txt: its head says how"
    assert pinned[canonicalize_name(requirement.name)] in requirement.specifier


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-node.txt"])
def test_every_pin_has_hashes_and_no_line_names_a_place(name):
    lines = [line for line in (SOURCE / "deploy" / name).read_text().splitlines() if not line.startswith("#")]
    for number, line in enumerate(lines):
        if "==" in line:
            assert lines[number + 1].strip().startswith("--hash=sha256:")
    assert not any("://" in line or "index-url" in line for line in lines)
