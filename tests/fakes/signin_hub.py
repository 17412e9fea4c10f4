"""A real JupyterHub with the lab's sign-in, and browsers to meet it with.

    with SignInHub(directory) as hub:
        secret = hub.invite("ada")
        browser = Browser(hub.url)
        browser.claim(secret, "kite-olive-7-moss")

Hub, proxy, OAuth and cookies are real. Users' servers are small web servers (tests/fakes/signin_server.py).
Passwords are hashed as in production.
"""

import html
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import requests

from gpulab_hub.accounts import Accounts
from gpulab_hub.roster import Entry
from tests.fakes.accounts_database import open_new
from tests.live import proxy

ROOT = Path(__file__).parents[2]
CONFIG = Path(__file__).with_name("signin_hub_config.py")
DAY = 86_400.0


class SignInHub:
    """One running hub, with a way to its accounts as the command line has it."""

    token = "0123456789abcdef" * 2

    def __init__(self, directory):
        self.directory = directory
        self.engine = open_new(directory)
        self.accounts = Accounts(self.engine)
        self.port, self.hub_port, self.proxy_port = _ports(3)
        self.url = f"http://127.0.0.1:{self.port}"
        self.process = None

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *exception):
        self.stop()
        self.engine.dispose()

    def start(self):
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "SIGNIN_STATE": str(self.directory),
            "SIGNIN_PORT": str(self.port),
            "SIGNIN_HUB_PORT": str(self.hub_port),
            "SIGNIN_PROXY_PORT": str(self.proxy_port),
            "SIGNIN_PROXY": shlex.join(proxy.install().command),
            "SIGNIN_TOKEN": self.token,
        }
        with (self.directory / "hub.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "jupyterhub", "-f", str(CONFIG)],
                cwd=self.directory,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
            )
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                if requests.get(f"{self.url}/hub/health", timeout=2).ok:
                    return
            except requests.RequestException:
                pass
            time.sleep(0.1)
        raise RuntimeError(f"the hub did not come up:\n{self.log()[-4000:]}")

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def log(self):
        return (self.directory / "hub.log").read_text(errors="replace")

    def add(self, name, *, admin=False):
        """Add an account; return its invitation's secret."""
        now = time.time()
        return self.accounts.add([Entry(name, admin)], now, now + DAY)[0].secret

    def add_with_password(self, name, password, *, admin=False):
        self.accounts.claim(self.add(name, admin=admin), password, password, time.time())

    def api(self, method, path, **options):
        headers = {"Authorization": f"token {self.token}"}
        return requests.request(method, f"{self.url}/hub/api/{path}", headers=headers, timeout=30, **options)


class Browser(requests.Session):
    """A browser without scripts: it keeps cookies and sends forms with the token of the page that it saw."""

    def __init__(self, url, address=None):
        super().__init__()
        self.base = url
        if address:
            self.headers["X-Forwarded-For"] = address

    def page(self, path, **options):
        return self.get(f"{self.base}{path}", timeout=30, **options)

    def submit(self, path, *, see=None, **fields):
        """See a page, then send its form."""
        seen = self.page(see or path)
        token = re.search(r'name="_xsrf" value="([^"]*)"', seen.text)
        assert token, f"{seen.status_code} {seen.url} holds no form"
        return self.post(f"{self.base}{path}", data={**fields, "_xsrf": token[1]}, timeout=30)

    def claim(self, secret, password, again=None):
        """Set a password with an invitation."""
        again = password if again is None else again
        return self.submit("/hub/invite", secret=secret, password=password, again=again)

    def sign_in(self, name, password):
        return self.submit("/hub/login?next=%2Fhub%2Fhome", username=name, password=password)

    def change(self, old, new, again=None):
        return self.submit("/hub/password", old=old, password=new, again=new if again is None else again)

    @property
    def user(self):
        """Name of whom the hub takes this browser for, None if nobody."""
        seen = self.page("/hub/home", allow_redirects=False)
        found = re.search(r'user: "((?:[^"\\]|\\.)*)"', seen.text)
        return found[1].encode().decode("unicode_escape") if found else None


def message(answer):
    """Return the words of the alert in a page."""
    found = re.search(
        r'<p[^>]*class="(?:alert alert-(?:danger|warning)|login_error)"[^>]*>(.*?)</p>', answer.text, re.S
    )
    return " ".join(html.unescape(re.sub(r"<[^>]*>", "", found[1])).split()) if found else ""


def _ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports
