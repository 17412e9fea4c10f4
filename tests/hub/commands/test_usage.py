import csv
import io
import json
import re
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from click.testing import CliRunner
from tests.fakes.hub_api import fake_hub
from tests.fakes.lab import NOON, Lab

from gpulab_hub.cli import main
from gpulab_hub.commands import usage
from gpulab_hub.database import lab_database
from gpulab_hub.paths import LabPaths

NOW = NOON + 36_000


def gpulab(state, *arguments):
    return CliRunner().invoke(main, ["usage", *arguments, "--state", str(state)])


@pytest.fixture
def state(tmp_path, monkeypatch):
    paths = LabPaths(tmp_path)
    paths.database.parent.mkdir()
    paths.config.write_text("time_zone: Europe/Berlin\n")
    monkeypatch.setattr(usage.time, "time", lambda: NOW)
    assert CliRunner().invoke(main, ["db", "upgrade", "--state", str(tmp_path)]).exit_code == 0
    return tmp_path


@pytest.fixture
def lab(state):
    engine = lab_database(LabPaths(state))
    lab = Lab(engine)
    lab.max_age = 86_400
    lab.admission = lab.another()
    lease = lab.open("ada", "gpu:2")
    lab.now += 1800
    lab.close(lease)
    lab.open("li", "gpu:1")
    yield lab
    engine.dispose()


def test_without_leases_it_says_so(state):
    done = gpulab(state)
    assert done.exit_code == 0
    assert done.output == "From 2026-10-31 00:00 to 2026-11-30 23:00 (Europe/Berlin)\n\nNobody held a GPU.\n"


def test_users_are_listed_with_their_hours(state, lab):
    lines = gpulab(state).output.splitlines()
    assert [re.split(r"  +", line) for line in lines[2:]] == [
        ["USER", "GPU-HOURS", "DEVICE-HOURS", "LEASES", "MEASURED", "IDLE"],
        ["li", "9.50", "9.50", "1", "not measured", "-"],
        ["ada", "1.00", "1.00", "1", "not measured", "-"],
        ["in all", "10.50", "10.50", "2", "not measured", "-"],
    ]


def test_leases_are_listed_with_their_user(state, lab):
    lines = gpulab(state, "--by", "lease").output.splitlines()
    assert re.fullmatch(r"[0-9a-f]{8}  li  +9\.50  .*", lines[3])


def test_a_period_is_given_in_the_sites_time(state, lab):
    done = gpulab(state, "--since", "2026-11-30 13:15", "--until", "2026-11-30T13:45", "--json")
    data = json.loads(done.output)
    assert data["time_zone"] == "Europe/Berlin"
    assert datetime.fromtimestamp(data["since"], ZoneInfo("UTC")).hour == 12
    assert {row["name"]: row["gpu_seconds"] for row in data["rows"]} == {"ada": 1800, "li": 900}
    assert data["total"]["device_seconds"] == 2700


def test_days_are_those_of_the_site(state, lab):
    data = json.loads(gpulab(state, "--by", "day", "--since", "2026-11-29", "--json").output)
    assert [(row["key"], row["gpu_seconds"]) for row in data["rows"]] == [
        ("2026-11-29", 0),
        ("2026-11-30", 37_800),
    ]


def test_csv_is_a_table_of_numbers(state, lab):
    (head, first, _) = csv.reader(io.StringIO(gpulab(state, "--csv").output))
    assert dict(zip(head, first, strict=True)) | {"leases": "1"} == {
        "user": "li",
        "gpu_hours": "9.5000",
        "device_hours": "9.5000",
        "leases": "1",
        "measured_gpu_hours": "0.0000",
        "idle_share": "",
    }


def test_groups_are_asked_of_the_hub(state, lab):
    pages = [
        {"items": [{"name": "nlp", "users": ["ada", "li"]}], "_pagination": {"next": {"offset": 1}}},
        {"items": [{"name": "vision", "users": ["ada"]}], "_pagination": {"next": None}},
    ]
    with fake_hub(pages=pages) as hub:
        paths = LabPaths(state)
        paths.secrets.mkdir()
        paths.admin_token.write_text("secret\n")
        paths.config.write_text(f"time_zone: Europe/Berlin\nlisten: {{port: {hub.port}}}\n")
        done = gpulab(state, "--by", "group")
    assert hub.asked == ["/hub/api/groups?offset=0", "/hub/api/groups?offset=1"]
    assert hub.tokens == {"token secret"}
    assert [line.split()[:2] for line in done.output.splitlines()[3:5]] == [
        ["nlp", "10.50"],
        ["vision", "1.00"],
    ]
    assert "Who is in several groups counts in each of them" in done.output


def test_a_hub_that_is_down_is_told_and_what_to_do(state, lab):
    done = gpulab(state, "--by", "group")
    assert done.exit_code == 1
    assert "The hub cannot be asked for its groups: it was never started." in done.output
    assert "ask by user" in done.output


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--since", "yesterday"], 2, "does not match the formats"),
        (["--by", "colour"], 2, "is not one of"),
        (["--json", "--csv"], 2, "not both"),
        (["--since", "2026-11-30", "--until", "2026-11-29"], 1, "ends before it begins"),
        (["--since", "2020-01-01"], 1, "1100 are the most"),
    ],
)
def test_wrong_usage_is_told(state, arguments, code, words):
    done = gpulab(state, *arguments)
    assert done.exit_code == code
    assert words in done.output
