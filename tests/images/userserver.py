"""A real server of a user in a process of its own, as the image starts it."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from http.client import HTTPMessage
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from tests.images.fakehub import SCOPE

LAB = Path(__file__).parents[2] / "images" / "base" / "lab"
START = """
import os
import sys
from pathlib import Path
from gpulab_server import lean, status
status.FILE = Path(os.environ["STATUS_FILE"])
if "QUICK" in os.environ:
    from gpulab_server import hubauth, panel
    hubauth.FRESH, panel.LOOK, panel.AT_LEAST = 0.1, 0.05, 0.3
with lean.standing_in():
    from gpulab_server.server import LabServer
    import jupyterlab.labapp
app = LabServer.initialize_server(sys.argv[1:])
# After the callback that binds the port, which is queued already.
app.io_loop.add_callback(lambda: print("listening", file=sys.stderr, flush=True))
app.start()
"""


class UserServer:
    """The server of ada at /user/ada/.

    Args:
        api: URL of the hub's API.
        directory: Its home; the lab's files and the extension of JupyterLab are put there as in the image.
        environment: Further variables; with QUICK the panel's stream looks at things many times a second.

    Attributes:
        port: Its port on loopback.
        status: Its status file, which is not there at first.
        log: What it has said so far.
    """

    def __init__(self, api: str, directory: Path, environment: dict[str, str] | None = None) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.status = directory / "channel" / "status.json"
        self.status.parent.mkdir()
        self._lay_out(directory)
        command = [
            *(sys.executable, "-c", START, "--allow-root"),
            f"--config={LAB / 'etc' / 'jupyter_server_config.py'}",
            f"--LabApp.app_settings_dir={directory / 'settings'}",
            f"--ServerApp.root_dir={directory / 'work'}",
        ]
        self.process = subprocess.Popen(
            command,
            env=self._environment(api, directory) | (environment or {}),
            cwd=directory,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr is not None
        self.log = ""
        for line in self.process.stderr:
            self.log += line
            if line == "listening\n":
                return
        raise AssertionError(self.log)

    @staticmethod
    def _lay_out(directory: Path) -> None:
        """Do what `set-up` does in the image."""
        (directory / "work").mkdir()
        (directory / "settings" / "overrides.d").mkdir(parents=True)
        shutil.copy(LAB / "etc" / "overrides.json", directory / "settings" / "overrides.d" / "gpulab.json")
        place = directory / "share" / "labextensions" / "gpulab-status"
        shutil.copytree(LAB / "labextension", place)

    def _environment(self, api: str, directory: Path) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(directory),
            "JUPYTER_PATH": str(directory / "share"),
            "JUPYTER_RUNTIME_DIR": str(directory / "runtime"),
            "JUPYTERHUB_API_TOKEN": "of-the-server",
            "JUPYTERHUB_API_URL": api,
            "JUPYTERHUB_ACTIVITY_URL": f"{api}/users/ada/activity",
            "JUPYTERHUB_BASE_URL": "/",
            "JUPYTERHUB_CLIENT_ID": "jupyterhub-user-ada",
            "JUPYTERHUB_OAUTH_ACCESS_SCOPES": json.dumps([SCOPE]),
            "JUPYTERHUB_SERVICE_PREFIX": "/user/ada/",
            "JUPYTERHUB_SERVICE_URL": f"http://127.0.0.1:{self.port}/user/ada/",
            "JUPYTERHUB_USER": "ada",
            "STATUS_FILE": str(self.status),
        }

    def ask(self, path: str, *, method: str = "GET", **headers: str) -> tuple[int, HTTPMessage, str]:
        """Return status, headers and text of an answer; a redirect is not followed."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, headers=named)
        reply = connection.getresponse()
        text = reply.read().decode()
        connection.close()
        return reply.status, reply.headers, text

    def sign_in(self) -> str:
        """Sign a browser in through the hub; return the cookies that it then has."""
        _, headers, _ = self.ask("/user/ada/lab", Sec_Fetch_Mode="navigate")
        state = parse_qs(urlsplit(headers["Location"]).query)["state"][0]
        back = f"/user/ada/oauth_callback?code=once&state={state}"
        status, signed_in, _ = self.ask(back, Cookie=cookies(headers), Sec_Fetch_Mode="navigate")
        assert status == 302
        return cookies(signed_in)

    def stop(self) -> None:
        """End it as Docker does, and keep the rest of what it says."""
        self.process.send_signal(signal.SIGTERM)
        self.log += self.process.communicate(timeout=30)[1]


def cookies(headers: HTTPMessage) -> str:
    """Return the cookies that an answer sets, as a browser sends them."""
    return "; ".join(value.split(";")[0] for value in headers.get_all("Set-Cookie", []))
