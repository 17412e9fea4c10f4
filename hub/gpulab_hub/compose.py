"""JupyterHub's configuration of a lab, from its state directory.

It is the only module that knows every class. config/jupyterhub_config.py calls `configure` and nothing else.
"""

from __future__ import annotations

from typing import Any

from gpulab_hub import locks, settings
from gpulab_hub.assembly import Lab, assemble
from gpulab_hub.database import database_url
from gpulab_hub.deploy import record as records
from gpulab_hub.deploy.record import LabRecord
from gpulab_hub.hub_api import READER_SCOPES, SCOPES, SERVICE
from gpulab_hub.pages.assets import TEMPLATES, assets
from gpulab_hub.pages.banner import Line
from gpulab_hub.pages.endings import endings_for_pages
from gpulab_hub.pages.facts import lab_facts
from gpulab_hub.pages.handlers import handlers
from gpulab_hub.pages.reading import SharedReading
from gpulab_hub.pages.spawn_form import spawn_form
from gpulab_hub.paths import LabPaths
from gpulab_hub.service.app import ACCESS, CLIENT
from gpulab_hub.service.metrics import SCOPE
from gpulab_hub.settings import Settings
from gpulab_hub.signin.authenticator import LabAuthenticator
from gpulab_spawner.spawner import GpuDockerSpawner

METRICS = "gpulab-metrics"
"""The hub's name for whoever reads metrics with the lab's token for it, which may do nothing else."""

METRICS_ROLE = {
    "name": METRICS,
    "description": "Read the metrics of hub and lab",
    "scopes": [SCOPE],
    "services": [METRICS],
}

_held: list[object] = []
"""The hub's lock: it is held until the process ends."""


def configure(c: Any, paths: LabPaths) -> None:
    """Configure JupyterHub.

    Args:
        c: The configuration object of jupyterhub_config.py.
        paths: The lab.

    Raises:
        ConfigError: There is no lab, or a setting is wrong.
        AlreadyRunning: The hub of this lab runs already.
    """
    record = records.require(paths.state)
    site = settings.load(paths.config)
    _held.append(locks.hold(paths.run / "hub.lock", "hub"))
    lab = assemble(paths, record, site)
    # A restored database may have forgotten servers: nothing is granted before they are found again.
    lab.reconciler.once()
    shared = SharedReading(lab.now)
    _hub(c, paths, record, site)
    _sign_in(c, paths, site, lab, shared)
    _spawner(c, site, lab, shared)
    _pages(c, record, site, lab)


def _hub(c: Any, paths: LabPaths, record: LabRecord, site: Settings) -> None:
    c.JupyterHub.bind_url = f"http://{in_url(record.listen)}:{record.port}"
    c.JupyterHub.hub_bind_url = f"http://{in_url(record.gateway)}:{record.hub_port}"
    if site.listen.public_url:
        c.JupyterHub.public_url = site.listen.public_url
    c.JupyterHub.db_url = f"sqlite:///{paths.hub_database}"
    c.JupyterHub.cookie_secret_file = str(paths.cookie_secret)
    # The proxy and the servers are not the hub's children: its own end must leave them alone.
    c.JupyterHub.cleanup_proxy = False
    c.JupyterHub.cleanup_servers = False
    c.ConfigurableHTTPProxy.should_start = False
    c.ConfigurableHTTPProxy.api_url = f"http://127.0.0.1:{record.proxy_api_port}"
    c.ConfigurableHTTPProxy.auth_token = paths.proxy_token.read_text(encoding="ascii").strip()
    # Else everybody behind a TLS proxy on this machine looks alike to the limits of sign-in.
    c.JupyterHub.trusted_downstream_ips = ["127.0.0.1", "::1"]
    # At its start the hub asks every server whether it lives: a frozen one would keep everybody waiting.
    c.JupyterHub.init_spawners_timeout = 2
    c.JupyterHub.allow_named_servers = site.servers.named > 0
    c.JupyterHub.named_server_limit_per_user = site.servers.named
    # A refusal within a second comes back on the form; whatever takes longer shows its progress.
    c.JupyterHub.tornado_settings = {"slow_spawn_timeout": 1}
    c.JupyterHub.services = [
        {"name": SERVICE, "api_token": paths.admin_token.read_text(encoding="ascii").strip()},
        {"name": METRICS, "api_token": paths.metrics_token.read_text(encoding="ascii").strip()},
        {
            "name": "gpulab",
            "url": f"http://127.0.0.1:{record.service_port}",
            "api_token": paths.service_token.read_text(encoding="ascii").strip(),
            "oauth_client_id": CLIENT,
            "oauth_no_confirm": True,
            # Routes are checked only once every service was waited for.
            "timeout": 2,
        },
    ]
    c.JupyterHub.load_roles = [
        {"name": SERVICE, "description": "The gpulab command", "scopes": list(SCOPES), "services": [SERVICE]},
        {
            "name": "gpulab-service",
            "description": "The lab's service: who is in which group",
            "scopes": list(READER_SCOPES),
            "services": ["gpulab"],
        },
        METRICS_ROLE,
        # The hub's own role of users, and the lab's service; admins have it besides theirs.
        {"name": "user", "description": "Standard user privileges", "scopes": ["self", ACCESS]},
    ]


def _sign_in(c: Any, paths: LabPaths, site: Settings, lab: Lab, shared: SharedReading) -> None:
    c.JupyterHub.authenticator_class = LabAuthenticator
    url = database_url(site, paths)
    c.LabAuthenticator.database_url = url.render_as_string(hide_password=False)
    c.LabAuthenticator.password_min_length = site.auth.local.password_min_length
    c.LabAuthenticator.routes = lambda: handlers(shared, lab.catalogue, lab.allowance)


def _spawner(c: Any, site: Settings, lab: Lab, shared: SharedReading) -> None:
    c.JupyterHub.spawner_class = GpuDockerSpawner
    c.GpuDockerSpawner.wiring = lambda: lab.wiring
    c.GpuDockerSpawner.options_form = spawn_form(
        shared, lab.catalogue, lab.last_choice, lab.last_end, allow=lab.allowance
    )
    # What the options mean is decided in start(); nothing is to be applied to traits.
    c.GpuDockerSpawner.apply_user_options = lambda spawner, options: None
    c.GpuDockerSpawner.start_timeout = site.servers.start_timeout_seconds
    c.GpuDockerSpawner.http_timeout = 60
    c.GpuDockerSpawner.poll_interval = 10
    c.GpuDockerSpawner.default_url = "/lab"
    c.GpuDockerSpawner.notebook_dir = ""


def _pages(c: Any, record: LabRecord, site: Settings, lab: Lab) -> None:
    c.JupyterHub.template_paths = [str(TEMPLATES)]
    facts = facts_of(record, site, lab.maintenance)
    c.JupyterHub.template_vars = {**facts, "endings": endings_for_pages(lab.endings)}


def facts_of(record: LabRecord, site: Settings, maintenance: Line = lambda: None) -> dict[str, object]:
    """Return what every page of the lab knows, the hub's and the service's.

    Args:
        record: The lab.
        site: Its settings.
        maintenance: Gives the line on maintenance.
    """
    return lab_facts(
        name=site.name,
        address=record.listen,
        public_url=site.listen.public_url,
        simulated=record.simulate,
        assets=assets(),
        password_page=True,
        gpus_page=True,
        maintenance=maintenance,
    )


def in_url(address: str) -> str:
    """Return an address as it is written in a URL."""
    return f"[{address}]" if ":" in address else address
