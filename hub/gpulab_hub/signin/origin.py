"""Where a request comes from, as far as it can be believed.

The hub's web server takes the client's address from X-Forwarded-For whoever sent it. The proxy, on this
machine, sets that header truthfully; a user's container reaches the hub's port directly and could write
anything there. So the header counts only when the connection itself comes from this machine's loopback.

A browser that signed in keeps a signed cookie that says so for that name. It opens nothing: wrong passwords
from it are counted apart from those of its address (`gpulab_hub.accounting.attempts`).
"""

from __future__ import annotations

from hashlib import sha256
from ipaddress import ip_address
from secrets import token_hex
from typing import Any

from gpulab_hub.accounting.attempts import Place

_DAYS = 180


def address_of(request: Any) -> str:
    """Return the client's address of a tornado request."""
    claimed = str(request.remote_ip)
    context = getattr(getattr(request, "connection", None), "context", None)
    # What the connection said before the web server let the headers speak; there is no public name for it.
    peer = getattr(context, "_orig_remote_ip", None)
    return claimed if peer is None or _loopback(str(peer)) else str(peer)


def place_of(handler: Any, name: str) -> Place:
    """Return the place of a handler's request, for tries at a name."""
    signed = handler.get_secure_cookie(_cookie(name), max_age_days=_DAYS)
    return Place(address_of(handler.request), signed.decode("ascii", "replace") if signed else None)


def remember_browser(handler: Any, name: str) -> None:
    """Let this browser be known as one that signed in as a name."""
    if not handler.get_secure_cookie(_cookie(name), max_age_days=_DAYS / 2):
        # JupyterHub's own way of setting cookies: signed, HttpOnly, Secure under TLS.
        handler._set_cookie(
            _cookie(name), token_hex(16), path=handler.hub.base_url, expires_days=_DAYS, samesite="Lax"
        )


def _cookie(name: str) -> str:
    return f"gpulab-known-{sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


def _loopback(address: str) -> bool:
    try:
        parsed = ip_address(address)
    except ValueError:
        # A unix socket has no address, and nothing but this machine reaches it.
        return True
    mapped = getattr(parsed, "ipv4_mapped", None)
    return bool((mapped or parsed).is_loopback)
