"""Rules of images/base/Dockerfile that a build would not show."""

import re
from pathlib import Path

TEXT = (Path(__file__).parents[2] / "images/base/Dockerfile").read_text()
STAGES = re.split(r"^FROM ", TEXT.replace("\\\n", " "), flags=re.MULTILINE)[1:]


def test_what_may_hold_passwords_is_seen_by_the_stage_of_packages_alone():
    seen = [stage.split()[0:3] for stage in STAGES if re.search(r"site/ |pip\.conf", stage)]
    assert seen == [["system", "AS", "packages"]]


def test_of_that_stage_only_the_environment_is_kept():
    assert re.findall(r"--from=packages (.*)", TEXT) == ["/opt/lab /opt/lab"]


def test_nothing_needs_buildkit():
    assert not re.search(r"--mount|--chmod|--link|<<|# syntax", TEXT)


def test_it_ends_as_the_user():
    assert re.findall(r"^USER (.*)", STAGES[-1], re.MULTILINE) == ["1000:1000"]
    assert "VOLUME" not in TEXT
