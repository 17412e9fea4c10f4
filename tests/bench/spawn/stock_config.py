"""The stock peer: what somebody writes who follows DockerSpawner's README; nothing makes it faster."""

import os

c = get_config()  # type: ignore[name-defined]  # noqa: F821

c.JupyterHub.bind_url = f"http://127.0.0.1:{os.environ['STOCK_PORT']}"
c.JupyterHub.hub_ip = os.environ["STOCK_GATEWAY"]
c.JupyterHub.hub_port = int(os.environ["STOCK_HUB_PORT"])
c.ConfigurableHTTPProxy.command = os.environ["STOCK_PROXY"].splitlines()
c.ConfigurableHTTPProxy.api_url = f"http://127.0.0.1:{os.environ['STOCK_PROXY_API_PORT']}"

c.JupyterHub.spawner_class = "docker"
c.DockerSpawner.image = os.environ["STOCK_IMAGE"]
c.DockerSpawner.network_name = os.environ["STOCK_NETWORK"]
c.DockerSpawner.remove = True
# A busy machine must not turn a slow start into a failed one.
c.DockerSpawner.http_timeout = 240

c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allow_all = True
c.JupyterHub.services = [{"name": "bench", "api_token": os.environ["STOCK_TOKEN"]}]
c.JupyterHub.load_roles = [
    {"name": "bench", "services": ["bench"], "scopes": ["admin:users", "admin:servers", "read:hub"]}
]
