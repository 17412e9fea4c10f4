"""deploy/monitoring: alerts and dashboard speak of series that exist, in PromQL that parses, and say when."""

import json
import re
import runpy
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from tests.fakes.lab import NOON, machine

from gpulab_hub.metrics import Seen, families

MONITORING = Path(__file__).parents[2] / "deploy" / "monitoring"
CASES = Path(__file__).with_name("alerts_test.yml")
RULES = [
    rule
    for group in yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
_SUFFIXES = {"counter": "_total", "info": "_info"}


@pytest.fixture
def dashboard():
    return SimpleNamespace(**runpy.run_path(str(MONITORING / "dashboard.py")))


def promtool(*arguments):
    """Run promtool; without it the test is left out (tests/install puts it there)."""
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not installed: tests/install")
    result = subprocess.run([found, *arguments], capture_output=True, text=True, check=False)
    return result.returncode, result.stdout + result.stderr


def exposed():
    """Return the name of every series that there can be."""
    found = families(Seen(NOON, "1", 15.0, inventory=machine(1, slices=1)))
    return {family.name + _SUFFIXES.get(family.type, "") for family in found}


def named(expression):
    return set(re.findall(r"\bgpulab_\w+", expression))


def queries(made):
    return [target["expr"] for panel in made["panels"] for target in panel.get("targets", ())]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_is_about_series_that_exist_and_says_what_to_do(rule):
    assert named(rule["expr"]) <= exposed()
    assert "for" in rule
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert len(rule["annotations"]["summary"]) > 20
    assert len(rule["annotations"]["description"]) > 40


def test_every_alert_has_a_case_in_which_it_speaks():
    speaks = set(re.findall(r'alertname="(\w+)", alertstate="firing"', CASES.read_text()))
    assert speaks == {rule["alert"] for rule in RULES}


def test_the_alerts_are_well_formed():
    status, said = promtool("check", "rules", "--lint-fatal", str(MONITORING / "alerts.yml"))
    assert status == 0, said


def test_the_alerts_speak_when_they_should_and_only_then():
    status, said = promtool("test", "rules", str(CASES))
    assert status == 0, said


def test_the_dashboard_is_made_of_its_description(dashboard):
    assert (MONITORING / "dashboard.json").read_text() == dashboard.text(), (
        "run deploy/monitoring/dashboard.py"
    )


def test_the_dashboard_shows_series_that_exist(dashboard):
    made = json.loads(dashboard.text())
    assert named(" ".join(queries(made))) <= exposed()
    for choice in made["templating"]["list"]:
        assert named(str(choice["query"])) - {"gpulab_device_info"} == set()
    assert len({panel["id"] for panel in made["panels"]}) == len(made["panels"])


def test_its_queries_parse(dashboard, tmp_path):
    asked = queries(json.loads(dashboard.text()))
    rules = [{"record": f"q:{n}", "expr": re.sub(r"\$\w+", ".*", q)} for n, q in enumerate(asked)]
    assert len(rules) > 20
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    status, said = promtool("check", "rules", str(file))
    assert status == 0, said


def test_the_scrape_example_is_understood(tmp_path):
    """It names files of the monitoring host; here they are made."""
    text = (MONITORING / "prometheus.yml").read_text()
    (tmp_path / "gpulab-token").write_text("t")
    shutil.copy(MONITORING / "alerts.yml", tmp_path / "gpulab-alerts.yml")
    file = tmp_path / "prometheus.yml"
    file.write_text(text.replace("/etc/prometheus", str(tmp_path)))
    status, said = promtool("check", "config", str(file))
    assert status == 0, said
    assert "16 rules found" in said
    assert yaml.safe_load(text)["scrape_configs"][0]["job_name"] == "gpulab"


def test_a_series_that_is_used_and_does_not_exist_is_noticed():
    assert not named("gpulab_gpu_power_wats > 3") <= exposed()
