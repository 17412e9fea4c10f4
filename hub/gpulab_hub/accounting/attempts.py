"""How often a password may be wrong.

Only wrong passwords count, so a whole class may sign in from one address. Each place holds a bucket of tries
that refills with time, kept as one number, the moment at which the bucket is full again (the generic cell
rate algorithm):

- a name from an address: 10 wrong ones at once, then one every two minutes;
- an address, whatever the names: 200 at once, then one every five seconds;
- a name in a browser that signed in as that name before: 10 at once, then one every two minutes, counted
  apart from its address.

There is no bucket of a name alone: whoever filled it would lock its owner out. For the same reason a browser
that is known keeps its own bucket: a neighbour behind the same address, or everyone behind a proxy that hides
addresses, can spend what others share but not that. Many addresses together do get many tries; passwords of
ten characters that are not the common ones withstand them.

Memory is bounded: the place that failed longest ago is forgotten first. Forgetting allows more tries and
never fewer.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from hashlib import blake2b
from ipaddress import IPv6Address, ip_address


@dataclass(frozen=True, slots=True)
class Limit:
    """Tries that a place has.

    Attributes:
        burst: Wrong tries at once, from a full bucket.
        every: Seconds until one more is earned back.
    """

    burst: int
    every: float

    def wait(self, full_at: float, now: float) -> float:
        """Return the seconds until a try is allowed, 0 if it is now."""
        return max(0.0, full_at - now - (self.burst - 1) * self.every)

    def charge(self, full_at: float, now: float) -> float:
        """Return when the bucket is full again, one wrong try later."""
        return max(full_at, now) + self.every


PAIR = Limit(burst=10, every=120)
ADDRESS = Limit(burst=200, every=5)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a try comes from.

    Attributes:
        address: Address of the client.
        device: Id of a browser that signed in as this name before, None for any other.
    """

    address: str
    device: str | None = None


def network(address: str) -> str:
    """Return the part of an address that its owner cannot change at will: an IPv6 client has a /64."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address):
        mapped = parsed.ipv4_mapped
        return str(mapped) if mapped else f"{IPv6Address(int(parsed) >> 64 << 64)}/64"
    return str(parsed)


def buckets(name: str, place: Place) -> tuple[tuple[bytes, Limit], ...]:
    """Return the buckets that a try draws from. A key has a fixed size, whatever was typed as the name."""
    if place.device is not None:
        return ((_key("device", name, place.device), PAIR),)
    where = network(place.address)
    return (_key("pair", name, where), PAIR), (_key("address", where), ADDRESS)


class WrongTries:
    """The buckets that are not full, at most `most` of them."""

    def __init__(self, most: int = 50_000) -> None:
        self._full_at: OrderedDict[bytes, float] = OrderedDict()
        self._most = most

    def __len__(self) -> int:
        return len(self._full_at)

    def wait(self, name: str, place: Place, now: float) -> float:
        """Return the seconds until a try is allowed, 0 if it is now."""
        return max(limit.wait(self._full_at.get(key, now), now) for key, limit in buckets(name, place))

    def wrong(self, name: str, place: Place, now: float) -> None:
        """Count a wrong password."""
        for key, limit in buckets(name, place):
            self._full_at[key] = limit.charge(self._full_at.get(key, now), now)
            self._full_at.move_to_end(key)
        while len(self._full_at) > self._most:
            self._full_at.popitem(last=False)

    def right(self, name: str, place: Place) -> None:
        """Forget this name's slips at this place. What its address did with other names stays counted."""
        self._full_at.pop(buckets(name, place)[0][0], None)


def spoken(seconds: float) -> str:
    """Return a wait in words, rounded up: `12 seconds`, `2 minutes`."""
    whole = max(1, int(-(-seconds // 1)))
    if whole < 60:
        return "1 second" if whole == 1 else f"{whole} seconds"
    minutes = -(-whole // 60)
    return "1 minute" if minutes == 1 else f"{minutes} minutes"


def _key(*parts: str) -> bytes:
    return blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=16).digest()
