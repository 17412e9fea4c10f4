"""What every page of the lab knows: the variable `gpulab` of the templates.

It is fixed when the hub starts, but for the line on maintenance. What changes while people look is polled
(`gpulab_hub.pages.handlers`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

PLAIN_HTTP = (
    "This lab is reached over http, without encryption: on the way, others can read passwords and notebooks. "
    "Use it only on a network that you trust; an admin can turn encryption on."
)


def lab_facts(
    *,
    name: str,
    address: str,
    public_url: str | None,
    simulated: str | None,
    assets: Mapping[str, str],
    password_page: bool = False,
    gpus_page: bool = False,
    maintenance: Callable[[], str | None] = lambda: None,
) -> dict[str, object]:
    """Return what goes into JupyterHub's template_vars.

    Args:
        name: Name of the lab, shown in the bar and in titles.
        address: Address that the lab listens on.
        public_url: URL that people type, None where it is the address.
        simulated: Name of the simulated machine, None on a real one.
        assets: Name of a static file to its address below the hub (`gpulab_hub.pages.assets`).
        password_page: Whether the lab keeps local accounts, whose owners can change their password.
        gpus_page: Whether the GPUs page is served.
        maintenance: Gives what every page tells of maintenance, None for nothing; it must not wait.
    """
    return {
        "gpulab": {
            "name": name,
            "simulated": simulated,
            "unencrypted": PLAIN_HTTP if unencrypted(address, public_url) else None,
            "assets": dict(assets),
            "password_page": password_page,
            "gpus_page": gpus_page,
            "maintenance": maintenance,
        }
    }


def unencrypted(address: str, public_url: str | None) -> bool:
    """Return whether people on other machines reach the lab without TLS."""
    if public_url is not None:
        parts = urlsplit(public_url)
        if parts.scheme == "https":
            return False
        return not _loopback(parts.hostname or "")
    return not _loopback(address)


def _loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
