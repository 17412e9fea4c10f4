"""`gpulab doctor`: looks at machine, Docker, GPUs and lab, and says what to do next."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import click

from gpulab_hub import settings as site
from gpulab_hub.commands import emit, json_option, lab_command
from gpulab_hub.deploy import record as records
from gpulab_hub.deploy.machine import ThisMachine
from gpulab_hub.doctor import checks, examination
from gpulab_hub.doctor.finding import Finding
from gpulab_hub.paths import LabPaths

_MARKS = {"ok": "ok  ", "warn": "WARN", "fail": "FAIL", "off": "-   "}


@click.command()
@json_option
@lab_command
def doctor(paths: LabPaths, as_json: bool) -> None:
    """Look at the machine and the lab; exit with 1 if something is broken or unsafe."""
    record = records.require(paths.state)
    facts = examination.look(paths, record, site.load(paths.config), ThisMachine(), time.time())
    findings = checks.examine(facts)
    if as_json:
        emit({"findings": [f.as_json() for f in findings]})
    else:
        click.echo(report(findings))
    if any(f.level == "fail" for f in findings):
        sys.exit(1)


def report(findings: Sequence[Finding]) -> str:
    """Return the findings as text: one line each, the next step below where there is one."""
    width = max((len(f.id) for f in findings), default=0)
    lines = []
    for finding in findings:
        lines.append(f"{_MARKS[finding.level]}  {finding.id:<{width}}  {finding.what}")
        if finding.next_step:
            lines.append(f"{'':{6 + width}}  -> {finding.next_step}")
    count = {level: sum(f.level == level for f in findings) for level in ("fail", "warn")}
    lines.append("")
    lines.append(f"{count['fail']} broken or unsafe, {count['warn']} to improve.")
    return "\n".join(lines)
