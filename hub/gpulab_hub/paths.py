"""Where everything of one lab lies below its state directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

DEFAULT_STATE = Path("/var/lib/gpulab")


@dataclass(frozen=True, slots=True)
class LabPaths:
    """Paths of one lab.

    Attributes:
        state: The state directory (`--state`).
    """

    state: Path

    @property
    def config(self) -> Path:
        """The site's settings, gpulab.yaml."""
        return self.state / "gpulab.yaml"

    @property
    def database(self) -> Path:
        """The lab's SQLite database, unless the settings name another."""
        return self.state / "db" / "gpulab.sqlite"

    @property
    def hub_database(self) -> Path:
        """JupyterHub's own SQLite database."""
        return self.state / "db" / "jupyterhub.sqlite"

    @property
    def secrets(self) -> Path:
        """Directory (0700) of cookie secret, proxy token, API tokens and the signing key."""
        return self.state / "secrets"

    @property
    def cookie_secret(self) -> Path:
        """JupyterHub's cookie secret, 64 hexadecimal digits."""
        return self.secrets / "cookie-secret"

    @property
    def proxy_token(self) -> Path:
        """The token of the proxy's API."""
        return self.secrets / "proxy-token"

    @property
    def signing_key(self) -> Path:
        """The key that signs lease labels, 64 hexadecimal digits."""
        return self.secrets / "signing-key"

    @property
    def admin_token(self) -> Path:
        """The API token with which the `gpulab` command speaks to the hub."""
        return self.secrets / "admin-token"

    @property
    def service_token(self) -> Path:
        """The API token of the lab's service, which is its OAuth secret too."""
        return self.secrets / "service-token"

    @property
    def metrics_token(self) -> Path:
        """The API token with which Prometheus reads the lab's metrics, and the hub's."""
        return self.secrets / "metrics-token"

    @property
    def venv(self) -> Path:
        """The Python environment that the lab runs from."""
        return self.state / "venv"

    @property
    def proxy(self) -> Path:
        """Where configurable-http-proxy is installed."""
        return self.state / "proxy"

    @property
    def hub_id(self) -> Path:
        """File with this lab's id: 12 hexadecimal digits, made once."""
        return self.state / "hub-id"

    @property
    def snapshot(self) -> Path:
        """The snapshot file that the agent replaces every second, in a directory that the agent owns."""
        return self.state / "agent" / "snapshot.json"

    @property
    def orders(self) -> Path:
        """The service's last orders to the agent, kept by the agent."""
        return self.snapshot.parent / "orders.json"

    @property
    def readings(self) -> Path:
        """The socket at which the service takes the agent's readings, in a directory of the service's own."""
        return self.run / "service" / "readings.sock"

    @property
    def simulate(self) -> Path:
        """Directory of the simulated machine: choice, library, state file, stand-in device nodes."""
        return self.state / "simulate"

    @property
    def run(self) -> Path:
        """Pid files, locks and the supervisor's socket."""
        return self.state / "run"

    @property
    def groups(self) -> Path:
        """Who is in which of the hub's groups, as the service last heard it."""
        return self.run / "groups.json"

    @property
    def uplot(self) -> Path:
        """The plotting library that is installed beside the proxy; it may be missing."""
        return self.proxy / "node_modules" / "uplot" / "dist"

    @property
    def servers(self) -> Path:
        """One directory per open lease: passwd, group, and what the service writes for the server."""
        return self.state / "servers"

    @property
    def log(self) -> Path:
        """Logs of the lab's processes."""
        return self.state / "log"

    @property
    def storage(self) -> Path:
        """Default storage root, unless the settings name another."""
        return self.state / "storage"
