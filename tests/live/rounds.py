"""Waiting for the reconcile loop of a lab's service."""

from __future__ import annotations

import requests
from tests.live.lab import Lab, until


def rounds(lab: Lab, count: int = 2) -> None:
    """Wait until the reconcile loop has gone round some times more."""

    def last() -> float | None:
        answer = requests.get(f"{lab.url}/services/gpulab/api/v1/healthz", timeout=10)
        return answer.json()["reconciled_at"] if answer.ok else None

    until(last, "the service has compared ledger and containers")
    for _ in range(count):
        before = last()
        until(lambda before=before: last() not in (None, before), "one more round")
