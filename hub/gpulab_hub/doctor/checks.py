"""Every check of the doctor, in the order of the report."""

from __future__ import annotations

from collections.abc import Callable

from gpulab_hub.doctor import engine_rules, gpu_rules, host_rules, service_rules
from gpulab_hub.doctor.facts import Facts
from gpulab_hub.doctor.finding import Finding
from gpulab_hub.doctor.injection import injection

Check = Callable[[Facts], Finding | list[Finding]]

CHECKS: tuple[Check, ...] = (
    gpu_rules.gpus,
    gpu_rules.driver,
    gpu_rules.snapshot,
    gpu_rules.persistence,
    gpu_rules.pynvml,
    engine_rules.docker,
    engine_rules.live_restore,
    injection,
    engine_rules.cdi,
    engine_rules.toolkit,
    engine_rules.default_runtime,
    engine_rules.cgroup_driver,
    host_rules.image,
    host_rules.storage,
    host_rules.memlock,
    host_rules.database,
    host_rules.limits,
    host_rules.local_state,
    host_rules.space,
    host_rules.port,
    service_rules.service,
    host_rules.inotify,
    host_rules.pids,
    host_rules.files,
)


def examine(facts: Facts) -> list[Finding]:
    """Return all findings."""
    findings: list[Finding] = []
    for check in CHECKS:
        found = check(facts)
        findings.extend(found if isinstance(found, list) else [found])
    return findings
