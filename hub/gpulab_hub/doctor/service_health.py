"""Asks the lab's service how it is: `healthz` says what it cannot do, its lock whether it runs at all."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from importlib.metadata import version

from gpulab_hub import locks
from gpulab_hub.deploy.record import LabRecord
from gpulab_hub.doctor.facts import ServiceFacts
from gpulab_hub.paths import LabPaths

HEALTHZ = "/services/gpulab/api/v1/healthz"
TIMEOUT_SECONDS = 10.0
# Never through a proxy of the admin's environment: it is this machine that we ask.
_HERE = urllib.request.build_opener(urllib.request.ProxyHandler({}))

Ask = Callable[[str], bytes]
"""Return what a URL answers; raises OSError where it does not answer, or not with 200."""


def ask(url: str) -> bytes:
    """Return what a URL of this machine answers.

    Raises:
        OSError: It does not answer, or not with success.
    """
    with _HERE.open(url, timeout=TIMEOUT_SECONDS) as answer:
        return bytes(answer.read())


def service_facts(paths: LabPaths, record: LabRecord, ask: Ask = ask) -> ServiceFacts:
    """Return what is to be known of a lab's service.

    Args:
        paths: The lab's paths.
        record: The lab's record.
        ask: Asks a URL.
    """
    installed = version("gpulab")
    try:
        said = json.loads(ask(f"http://127.0.0.1:{record.service_port}{HEALTHZ}"))
        release, problems = str(said["release"]), tuple(str(each) for each in said["problems"])
    except (OSError, HTTPException) as error:
        silent = str(getattr(error, "reason", error)) or type(error).__name__
    except (ValueError, KeyError, TypeError):
        silent = "what answers there is another program, or of an older release"
    else:
        return ServiceFacts(running=True, release=release, installed=installed, problems=problems)
    # The lock tells a process that hangs from none; it may be another user's, which only root sees.
    return ServiceFacts(running=locks.held(paths.run / "service.lock"), silent=silent, installed=installed)
