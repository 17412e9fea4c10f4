"""The rule on the lab's service. Pure."""

from __future__ import annotations

from gpulab_hub.doctor.facts import Facts
from gpulab_hub.doctor.finding import Finding, fail, off, ok, warn


def service(facts: Facts) -> Finding:
    """Say whether the service runs, answers, is of this release and can do its work."""
    found = facts.service
    if found.running is None:
        return off("service", "not looked at")
    if not found.running:
        return fail(
            "service",
            "it does not run: no GPUs page, and what goes wrong with leases stays wrong",
            "Run deploy/up, which starts it; if it ends again, its log says why (gpulab status).",
        )
    if found.silent is not None:
        return fail(
            "service",
            f"it runs, and does not say how it is: {found.silent}",
            "See its log (gpulab status), then run deploy/up.",
        )
    if found.release != found.installed:
        return warn(
            "service",
            f"it runs release {found.release}, and {found.installed} is installed",
            "Run deploy/up: it restarts what has changed. Servers run on.",
        )
    if found.problems:
        return warn(
            "service",
            "it runs, but: " + "; ".join(found.problems),
            "Mend what it names; the other findings may say how. It tries again by itself.",
        )
    return ok("service", f"release {found.release} answers, and all is well with it")
