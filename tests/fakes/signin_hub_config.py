"""Configuration of the hub of the sign-in tests (tests/fakes/signin_hub.py starts it).

Servers are JupyterHub's own stand-in, a small web server as a process, so that addresses work to the end.
"""

import os
import sys
from pathlib import Path

from jupyterhub.spawner import SimpleLocalProcessSpawner
from tornado.web import StaticFileHandler

import gpulab_hub
from gpulab_hub.compose import METRICS, METRICS_ROLE
from gpulab_hub.hub_api import SCOPES
from gpulab_hub.signin.authenticator import LabAuthenticator

state = Path(os.environ["SIGNIN_STATE"])
pages = Path(gpulab_hub.__file__).parent / "pages"


class SmallServer(SimpleLocalProcessSpawner):
    """Starts tests/fakes/signin_server.py."""

    home_dir_template = str(state)
    cmd = [sys.executable, str(Path(__file__).parent / "signin_server.py")]  # noqa: RUF012

    def get_args(self):
        return []


c = get_config()  # noqa: F821
c.JupyterHub.authenticator_class = LabAuthenticator
c.LabAuthenticator.database_url = f"sqlite:///{state / 'lab.sqlite'}"
c.LabAuthenticator.routes = lambda: [
    (r"/gpulab/static/(.*)", StaticFileHandler, {"path": str(pages / "static")})
]
c.JupyterHub.template_paths = [str(pages / "templates")]
c.JupyterHub.template_vars = {
    "gpulab": {
        "name": "GPU Lab",
        "password_page": True,
        "assets": {file.name: f"gpulab/static/{file.name}" for file in (pages / "static").iterdir()},
    }
}
c.JupyterHub.spawner_class = SmallServer
c.JupyterHub.allow_named_servers = True
c.JupyterHub.bind_url = f"http://127.0.0.1:{os.environ['SIGNIN_PORT']}"
c.JupyterHub.hub_bind_url = f"http://127.0.0.1:{os.environ['SIGNIN_HUB_PORT']}"
c.ConfigurableHTTPProxy.api_url = f"http://127.0.0.1:{os.environ['SIGNIN_PROXY_PORT']}"
c.ConfigurableHTTPProxy.command = os.environ["SIGNIN_PROXY"].split()
c.JupyterHub.trusted_downstream_ips = ["127.0.0.1", "::1"]
c.JupyterHub.db_url = f"sqlite:///{state / 'hub.sqlite'}"
c.JupyterHub.cookie_secret_file = str(state / "cookie_secret")
c.JupyterHub.services = [
    {"name": "gpulab-cli", "api_token": os.environ["SIGNIN_TOKEN"]},
    {"name": METRICS, "api_token": os.environ["SIGNIN_TOKEN"][::-1]},
]
c.JupyterHub.load_groups = {"nlp": {"users": []}}
c.JupyterHub.load_roles = [
    {
        "name": "gpulab-cli",
        "services": ["gpulab-cli"],
        "scopes": [*SCOPES, "admin:users", "servers", "groups"],
    },
    METRICS_ROLE,
]
