"""`gpulab quota` and `gpulab audit`."""

import json

import pytest
from click.testing import CliRunner
from tests.fakes.lab import Lab

from gpulab_hub.cli import main
from gpulab_hub.commands import quota as command
from gpulab_hub.database import lab_database
from gpulab_hub.hub_api import HubApi, HubDown
from gpulab_hub.paths import LabPaths


@pytest.fixture
def lab(tmp_path, monkeypatch):
    paths = LabPaths(tmp_path)
    paths.database.parent.mkdir()
    paths.config.write_text("time_zone: UTC\n")
    assert CliRunner().invoke(main, ["db", "upgrade", "--state", str(tmp_path)]).exit_code == 0
    engine = lab_database(paths)
    made = Lab(engine)
    made.paths = paths
    made.gpulab = lambda *words: CliRunner().invoke(main, [*words, "--state", str(tmp_path)])
    made.now = 1_796_040_000.0
    monkeypatch.setattr(command.time, "time", lambda: made.now)
    monkeypatch.setattr(command.getpass, "getuser", lambda: "root")
    monkeypatch.setattr(HubApi, "groups", lambda self: {"ada": ("vision",)})
    yield made
    engine.dispose()


def said(lab, *words):
    done = lab.gpulab(*words)
    assert done.exit_code == 0, done.output
    return done.stdout


def read(lab, *words):
    return json.loads(said(lab, *words, "--json"))


def test_limits_are_set_shown_and_taken_back(lab):
    assert said(lab, "quota", "show") == "No limits are set.\n"
    done = said(lab, "quota", "set", "group:vision", "gpus=2", "hours.week=60", "--reason", "new cards")
    assert "root (on the host)  quota set  group:vision gpus: nothing -> 2  (new cards)" in done
    again = said(lab, "quota", "set", "group:vision", "gpus=2", "--reason", "x")
    assert again == "It was so already.\n"
    assert "group:vision hours.week  60  (set by root (on the host), 2026-11-30 12:00)" in said(
        lab, "quota", "show"
    )
    assert read(lab, "quota", "show", "everyone") == []
    assert said(lab, "quota", "show", "everyone") == "Nothing is set for everyone.\n"
    assert [each["limit"] for each in read(lab, "quota", "show", "group:vision")] == ["gpus", "hours.week"]
    said(lab, "quota", "unset", "group:vision", "gpus", "--reason", "too many")
    assert [each["limit"] for each in read(lab, "quota", "show")] == ["hours.week"]


def test_what_holds_for_a_user_is_shown_with_its_use_and_source(lab):
    said(lab, "quota", "set", "everyone", "gpus=1", "longest=8h", "memory=64G", "--reason", "x")
    said(lab, "quota", "set", "group:vision", "gpus=2", "hours.week=60", "--reason", "x")
    said(lab, "quota", "set", "user:ada", "servers=unlimited", "--reason", "x")
    lab.open(runtime=3600)
    shown = said(lab, "quota", "show", "user:ada")
    assert [line.split() for line in shown.splitlines()] == [
        ["ada,", "in", "groups", "vision"],
        ["servers", "1", "of", "unlimited", "set", "for", "ada"],
        ["memory", "1", "GiB", "of", "64G", "for", "everyone"],
        ["gpus", "1", "of", "2", "from", "group", "vision"],
        ["longest", "up", "to", "8h", "for", "everyone"],
        ["hours.week", "1", "of", "60", "GPU-hours", "from", "group", "vision"],
    ]
    assert {each["limit"]: each["used"] for each in read(lab, "quota", "show", "user:ada")["limits"]} == {
        "servers": 1.0,
        "memory": 2.0**30,
        "gpus": 1.0,
        "longest": None,
        "hours.week": 1.0,
    }
    assert "gpus     0 of 1" in said(lab, "quota", "show", "user:li")
    assert read(lab, "quota", "show", "user:ada", "--groups", "")["limits"][2]["value"] == "1"


def test_a_hub_that_cannot_be_asked_is_told_of(lab, monkeypatch):
    def down(self):
        raise HubDown("it answers 503")

    monkeypatch.setattr(HubApi, "groups", down)
    done = lab.gpulab("quota", "show", "user:ada")
    assert done.exit_code == 0
    assert done.stdout == "ada, in no group\n  Nothing is limited.\n"
    assert "The groups of ada are not known (it answers 503); name them with --groups." in done.stderr
    assert "in groups r, vision" in said(lab, "quota", "show", "user:ada", "--groups", "r, vision")


def test_extra_hours_are_granted_and_shown_until_they_lapse(lab):
    done = said(lab, "quota", "extra", "ada", "10", "--until", "2026-12-06", "--reason", "deadline")
    assert done.startswith(
        "root (on the host)  quota extra  user:ada: nothing -> 10 GPU-hours until 2026-12-06"
    )
    assert "10 extra GPU-hours until 2026-12-06  (deadline; root (on the host))" in said(
        lab, "quota", "show", "user:ada"
    )
    [granted] = read(lab, "quota", "show", "user:ada")["extra"]
    assert (granted["hours"], granted["first_day"], granted["last_day"]) == (10.0, "2026-11-30", "2026-12-06")
    lab.now += 7 * 86400
    assert "extra" not in said(lab, "quota", "show", "user:ada")


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["set", "all", "gpus=1"], 2, "write everyone, group:NAME or user:NAME"),
        (["set", "everyone", "gpus"], 2, "write LIMIT=VALUE, such as gpus=2"),
        (["set", "everyone"], 2, "Missing argument"),
        (["set", "everyone", "gpus=many"], 1, "gpus cannot be set to 'many'"),
        (["set", "everyone", "cards=1"], 1, "there is no limit 'cards'"),
        (["unset", "everyone", "cards"], 0, "It was so already."),
        (["extra", "ada", "ten", "--until", "2026-12-06"], 2, "not a number such as"),
        (["extra", "ada", "unlimited", "--until", "2026-12-06"], 2, "extra hours are a number"),
        (["extra", "ada", "1", "--until", "2026-11-29"], 1, "Nobody could use 1 GPU-hours"),
    ],
)
def test_what_is_wrong_is_told_and_changes_nothing(lab, words, code, told):
    done = lab.gpulab("quota", *words, "--reason", "x")
    assert (done.exit_code, told in done.output) == (code, True), done.output
    assert read(lab, "audit") == []


def test_a_change_needs_a_reason(lab):
    done = lab.gpulab("quota", "set", "everyone", "gpus=1")
    assert done.exit_code == 2
    assert "--reason" in done.output


def test_the_audit_log_is_listed_the_newest_first(lab):
    assert said(lab, "audit") == "Nothing was changed yet.\n"
    said(lab, "quota", "set", "everyone", "gpus=1", "--reason", "start")
    lab.now += 60
    said(lab, "quota", "set", "user:ada", "gpus=2", "--reason", "deadline")
    assert said(lab, "audit").splitlines() == [
        "2026-11-30 12:01  root (on the host)  quota set  user:ada gpus: nothing -> 2  (deadline)",
        "2026-11-30 12:00  root (on the host)  quota set  everyone gpus: nothing -> 1  (start)",
    ]
    assert [each["after"] for each in read(lab, "audit", "--subject", "user:")] == ["2"]
    assert len(read(lab, "audit", "--limit", "1")) == 1


def test_a_file_that_says_otherwise_is_told_of(lab):
    lab.paths.config.write_text("limits:\n  everyone: {gpus: 1}\n")
    done = lab.gpulab("quota", "show")
    assert "everyone gpus: gpulab.yaml says 1, the database nothing. The database holds." in done.stderr
    said(lab, "quota", "set", "everyone", "gpus=1", "--reason", "x")
    assert lab.gpulab("quota", "show").stderr == ""


def test_a_lease_that_ran_over_midnight_is_in_the_days(lab):
    said(lab, "quota", "set", "everyone", "hours.day=24", "--reason", "x")
    lab.now += 11 * 3600
    lab.max_age = 1e9
    lab.admission = lab.another()
    lease = lab.open()
    lab.now += 3 * 3600
    lab.close(lease)
    assert "hours.day  2 of 24 GPU-hours" in said(lab, "quota", "show", "user:ada")
