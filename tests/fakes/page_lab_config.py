"""Configuration of the hub in page_lab.py; the hub executes it."""

import asyncio
import json
import os
import sys
import time
from datetime import UTC
from pathlib import Path

from jupyterhub.auth import DummyAuthenticator
from jupyterhub.spawner import SimpleLocalProcessSpawner

from gpulab_hub.accounting.allowance import Allowance
from gpulab_hub.accounting.limits import EVERYONE, Limits, combine, read_rules
from gpulab_hub.accounting.quota import Usage
from gpulab_hub.pages.assets import TEMPLATES, assets
from gpulab_hub.pages.endings import endings_for_pages
from gpulab_hub.pages.facts import lab_facts
from gpulab_hub.pages.handlers import handlers
from gpulab_hub.pages.reading import SharedReading
from gpulab_hub.pages.spawn_form import spawn_form
from gpulab_hub.pages.spawn_page import LabNow
from gpulab_spawner import errors, form
from gpulab_spawner.placement.availability import Offer
from gpulab_spawner.profiles import Defaults, read_profiles
from gpulab_spawner.refusal import refused_to_the_hub

c = get_config()  # noqa: F821
HERE = Path(os.environ["PAGE_LAB"])
LAB = json.loads((HERE / "lab.json").read_text())
CATALOGUE = read_profiles(LAB["profiles"], Defaults(image="lab/base", memory_bytes=4 << 30))


def scene():
    return json.loads(Path(LAB["scene"]).read_text())


def read_lab():
    now = scene()
    if now.get("broken"):
        raise RuntimeError("the scene broke the reading")
    offers = {slug: tuple(Offer(**o) for o in offers) for slug, offers in now["offers"].items()}
    return LabNow(offers=offers, taken_at=time.time() - now["age"])


def read_endings(user, servers):
    if scene().get("broken"):
        raise errors.LedgerUnavailable("the scene broke the ledger")
    found = scene().get("endings") or {}
    return [found[server] for server in servers if server in found]


def allow(user, groups):
    """Limit everybody by the scene's limits; nobody holds anything or has used anything."""
    rules = read_rules(scene().get("limits", {}))
    if not rules:
        return None
    effective = combine(Limits(rules[EVERYONE]), {}, Limits())

    def kinds(shape):
        profile = getattr(shape, "profile", None)
        return [("NVIDIA H100", profile)] * (1 if profile else getattr(shape, "count", 0))

    return Allowance.of(effective, Usage(), time.time(), UTC, kinds)


class SceneAuthenticator(DummyAuthenticator):
    def get_handlers(self, app):
        return [*super().get_handlers(app), *handlers(READING, CATALOGUE, allow)]


class SceneSpawner(SimpleLocalProcessSpawner):
    cmd = [sys.executable, str(Path(__file__).with_name("page_lab_server.py"))]  # noqa: RUF012
    home_dir_template = str(HERE / "homes" / "{username}")

    def options_from_query(self, query_data):
        with refused_to_the_hub():
            return form.options_from_query(query_data)

    async def progress(self):
        yield {"progress": 20, "message": "waiting for Docker", "elapsed": 0.4}
        yield {"progress": 60, "message": "starting Jupyter on <GPU 0>", "elapsed": 1.1}

    async def start(self):
        with refused_to_the_hub():
            choice = form.parse_options(self.user_options, CATALOGUE)
        Path(HERE / "choice.json").write_text(
            json.dumps([self.name, choice.profile.slug, str(choice.shape), choice.runtime_seconds])
        )
        LAST[self.user.name] = self.user_options
        while scene()["hold"]:
            await asyncio.sleep(0.05)
        now = scene()
        if now["fail"]:
            raise RuntimeError(now["fail"])
        if now["refuse"]:
            kind = next(k for k in errors.Refusal.__subclasses__() if k.code == now["refuse"]["code"])
            with refused_to_the_hub():
                raise kind(now["refuse"]["message"], next_step=now["refuse"]["next_step"])
        return await super().start()


def options_from_form(formdata):
    with refused_to_the_hub():
        return form.options_from_form(formdata)


LAST: dict[str, object] = {}
READING = SharedReading(read_lab, keep=0.0)
c.JupyterHub.bind_url = f"http://127.0.0.1:{LAB['port']}"
c.JupyterHub.hub_port = LAB["hub_port"]
c.JupyterHub.db_url = f"sqlite:///{HERE}/hub.sqlite"
c.JupyterHub.cookie_secret_file = str(HERE / "cookie_secret")
c.ConfigurableHTTPProxy.api_url = f"http://127.0.0.1:{LAB['api_port']}"
c.ConfigurableHTTPProxy.command = LAB["proxy"]
c.ConfigurableHTTPProxy.pid_file = str(HERE / "proxy.pid")
c.ConfigurableHTTPProxy.auth_token = "0" * 64
c.JupyterHub.authenticator_class = SceneAuthenticator
c.DummyAuthenticator.password = "x"
c.Authenticator.allow_all = True
c.Authenticator.admin_users = {"root"}
c.JupyterHub.spawner_class = SceneSpawner
c.JupyterHub.allow_named_servers = True
c.Spawner.options_form = spawn_form(READING, CATALOGUE, lambda user, server: LAST.get(user), allow=allow)
c.Spawner.options_from_form = options_from_form
c.Spawner.apply_user_options = lambda spawner, options: None
c.JupyterHub.template_paths = [str(TEMPLATES)]
c.JupyterHub.template_vars = {"endings": endings_for_pages(read_endings)} | lab_facts(
    **{
        "name": "GPU Lab",
        "address": "127.0.0.1",
        "public_url": None,
        "simulated": None,
        "assets": assets(),
        "password_page": True,
        **LAB["facts"],
    }
)
c.JupyterHub.services = [{"name": "tests", "api_token": LAB["token"]}]
c.JupyterHub.load_roles = [
    {"name": "tests", "services": ["tests"], "scopes": ["admin:users", "admin:servers", "tokens"]}
]
