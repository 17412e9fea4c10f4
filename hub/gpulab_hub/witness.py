"""The signature by which the lab knows its own containers.

Labels of an image are inherited by its containers, so a lease id in a label proves nothing by itself: each
container also carries the id's signature under a key that only this lab holds.
"""

from __future__ import annotations

import hashlib
import hmac

_DIGITS = 32


def sign(key: bytes, lease_id: str) -> str:
    """Return the witness of a lease id: HMAC-SHA256 in hexadecimal, its first 32 digits (128 bits)."""
    return hmac.new(key, lease_id.encode(), hashlib.sha256).hexdigest()[:_DIGITS]


def verify(key: bytes, lease_id: str, witness: str) -> bool:
    """Return whether a witness is this key's for that lease id; any text may be asked about."""
    return hmac.compare_digest(sign(key, lease_id).encode(), witness.encode())
