"""The Jupyter server of a user, as JupyterHub's extension with four differences.

1. Who may enter is asked through `gpulab_server.hubauth`.
2. Nothing is asked of the hub before the server answers: JupyterHub's version check waits for the hub inside
   start-up, at a moment when the hub is busy with this very spawn.
3. A hub that is away never ends a server: the stock version check exits after five tries, so a server that
   starts while the hub restarts would die with the work in it.
4. It answers the panel in JupyterLab (`gpulab_server.panel`).
"""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
from jupyterhub._version import __version__, _check_version
from jupyterhub.httpclient import fetch
from jupyterhub.singleuser.extension import JupyterHubIdentityProvider, JupyterHubSingleUser
from traitlets import default

from gpulab_server import panel
from gpulab_server.hubauth import LabOAuth

QUIET_SECONDS = 5.0
"""How long a new server leaves the hub alone: its first page comes before its first report."""


class LabIdentity(JupyterHubIdentityProvider):  # type: ignore[misc]  # JupyterHub has no type hints
    """JupyterHub's identity provider, asking through LabOAuth."""

    @default("hub_auth")
    def _lab_oauth(self) -> LabOAuth:
        return LabOAuth(parent=self)


class LabServer(JupyterHubSingleUser):  # type: ignore[misc]
    """A user's server that the hub started."""

    _version_check: asyncio.Task[None] | None = None

    @default("hub_auth")
    def _lab_oauth(self) -> LabOAuth:
        return LabOAuth(parent=self)

    def load_config_file(self) -> None:
        """Read the hub's environment as JupyterHub does, then put our identity provider in its place."""
        super().load_config_file()
        self.config.ServerApp.identity_provider_class = LabIdentity
        self.serverapp.update_config(self.config)

    def initialize_handlers(self) -> None:
        """Add what the panel asks."""
        self.handlers += panel.routes()

    async def check_hub_version(self) -> None:
        """Compare versions later, in the background."""
        self._version_check = asyncio.ensure_future(self._compare_versions())

    async def _compare_versions(self) -> None:
        await asyncio.sleep(QUIET_SECONDS)
        try:
            reply = await fetch(self.hub_auth.api_url, **self.hub_http_client_opts)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self.log.warning("The hub does not answer at %s: %s", self.hub_auth.api_url, error)
        else:
            _check_version(reply.headers.get("X-JupyterHub-Version"), __version__, self.log)

    async def keep_activity_updated(self) -> None:
        """Report activity as JupyterHub does, the first time after the start is over."""
        await asyncio.sleep(QUIET_SECONDS)
        await super().keep_activity_updated()

    async def stop_extension(self) -> None:
        """End the background work."""
        await super().stop_extension()
        if self._version_check:
            self._version_check.cancel()


def launch(arguments: list[Any]) -> None:
    """Run the server until it is stopped."""
    LabServer.launch_instance(arguments)
