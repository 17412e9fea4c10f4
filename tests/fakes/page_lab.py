"""A real JupyterHub with the lab's pages, and a scene that tests change while it runs.

    with PageLab(directory) as lab:
        lab.scene(offers={...}, refuse="no_capacity")
        lab.url        # where it listens

The hub, its proxy, its database, its pages and its spawner's life cycle are real. What is not: the machine
(the scene says what is offered) and the container (a small HTTP server, a refusal, or a start that is held
until the scene lets it go on). Passwords are all `x`.

Run as a script it stands until interrupted: python -m tests.fakes.page_lab MACHINE
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import quote

import requests

from gpulab_spawner.placement.availability import Offer
from tests.live import proxy

ROOT = Path(__file__).parents[2]
CONFIG = Path(__file__).with_name("page_lab_config.py")
PROFILES: list[dict[str, Any]] = [
    {
        "display_name": "PyTorch 2.7",
        "slug": "pytorch",
        "description": "CUDA 12.6; torch, torchvision, torchaudio",
        "default": True,
        "gpu": ["none", "gpu:1", "gpu:2", "mig", "memory"],
        "kubespawner_override": {"image": "lab/pytorch", "mem_limit": "16G", "cpu_limit": 4},
    },
    {
        "display_name": "Transformers",
        "slug": "transformers",
        "description": "PyTorch 2.7 with datasets, accelerate and tensorboard",
        "gpu": ["none", "gpu:1", "gpu:8", "memory"],
        "kubespawner_override": {"image": "lab/transformers", "mem_limit": "32G", "cpu_limit": 8},
    },
    {
        "display_name": "Plain Python",
        "slug": "plain",
        "description": "no CUDA",
        "gpu": ["none"],
        "kubespawner_override": {"image": "lab/plain"},
    },
]


class PageLab:
    """One running hub.

    Args:
        directory: Where its state goes.
        profiles: Its profile list.
        facts: Overrides for `lab_facts`.
    """

    def __init__(
        self,
        directory: Path,
        *,
        profiles: list[dict[str, Any]] | None = None,
        facts: dict[str, Any] | None = None,
    ) -> None:
        self.directory = directory
        self.port, self.hub_port, self.api_port = _ports(3)
        self.url = f"http://127.0.0.1:{self.port}"
        self.token = "f" * 32
        self.headers = {"Authorization": f"token {self.token}"}
        self._facts = facts or {}
        self._profiles = profiles if profiles is not None else PROFILES
        self._hub: subprocess.Popen[bytes] | None = None
        self._scene: dict[str, Any] = {"offers": {}, "age": 0.5, "refuse": None, "hold": False, "fail": None}

    def __enter__(self) -> PageLab:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.scene()
        settings = {
            "port": self.port,
            "hub_port": self.hub_port,
            "api_port": self.api_port,
            "profiles": self._profiles,
            "facts": self._facts,
            "proxy": proxy.install().command,
            "scene": str(self.directory / "scene.json"),
            "token": self.token,
        }
        (self.directory / "lab.json").write_text(json.dumps(settings))
        with (self.directory / "hub.log").open("wb") as log:
            self._hub = subprocess.Popen(
                [sys.executable, "-m", "jupyterhub", "-f", str(CONFIG)],
                cwd=self.directory,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PAGE_LAB": str(self.directory), "PYTHONPATH": str(ROOT)},
            )
        self._wait()
        return self

    def __exit__(self, *exception: object) -> None:
        assert self._hub is not None
        self._hub.send_signal(signal.SIGTERM)
        try:
            self._hub.wait(20)
        except subprocess.TimeoutExpired:
            self._hub.kill()
            self._hub.wait()

    def scene(self, **changes: Any) -> None:
        """Change what the lab meets from now on: offers, age, refuse, hold, fail, broken."""
        self._scene.update(changes)
        fresh = self.directory / "scene.new"
        fresh.write_text(json.dumps(self._scene))
        fresh.replace(self.directory / "scene.json")

    def offer(self, **by_profile: list[Offer]) -> None:
        """Change the offers, by the slug of the profile."""
        self.scene(offers={slug: [asdict(o) for o in offers] for slug, offers in by_profile.items()})

    def remember(self, name: str, options: dict[str, Any]) -> None:
        """Leave in the hub what a user's last start asked for: start with it, then stop."""
        self.api("POST", f"users/{quote(name)}/server", {"user_options": options})
        self.api("DELETE", f"users/{quote(name)}/server")

    def user(self, name: str) -> dict[str, Any]:
        """Return what the hub says of a user."""
        user: dict[str, Any] = self.api("GET", f"users/{quote(name)}?include_stopped_servers=1").json()
        return user

    def api(self, method: str, path: str, body: Any = None) -> requests.Response:
        """Ask the hub's API as the tests' service."""
        answer = requests.request(
            method,
            f"{self.url}/hub/api/{path}",
            json=body,
            headers=self.headers,
            timeout=30,
        )
        answer.raise_for_status()
        return answer

    def log(self) -> str:
        """Return what the hub has logged."""
        return (self.directory / "hub.log").read_text(errors="replace")

    def _wait(self) -> None:
        deadline = time.monotonic() + 60
        assert self._hub is not None
        while time.monotonic() < deadline:
            if self._hub.poll() is not None:
                break
            try:
                if requests.get(f"{self.url}/hub/health", timeout=2).ok:
                    return
            except requests.RequestException:
                pass
            time.sleep(0.1)
        raise RuntimeError(f"the hub did not come up:\n{self.log()[-4000:]}")


def _ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def main() -> None:
    """Stand until interrupted, with the offers of a machine."""
    from tests.fakes.page_machines import MACHINES, offers_of

    machine = sys.argv[1] if len(sys.argv) > 1 else "mig"
    with tempfile.TemporaryDirectory() as directory, PageLab(Path(directory)) as lab:
        lab.scene(offers=offers_of(MACHINES[machine], PROFILES))
        print(f"{lab.url}  (any name, password x; interrupt to end)")
        signal.pause()


if __name__ == "__main__":
    main()
