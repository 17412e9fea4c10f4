"""Host memory: what is promised never exceeds what there is."""

from __future__ import annotations

from gpulab_spawner.errors import HostMemoryShort

_GIB = 2**30


def require_memory(asked: int, promised: int, total: int, reserve: int) -> None:
    """Refuse a server whose guarantee does not fit beside those given. All sizes are in bytes.

    Args:
        asked: Guarantee of the new server.
        promised: Guarantees of the open leases.
        total: Memory of the host.
        reserve: Memory that the host keeps for itself.

    Raises:
        HostMemoryShort: The sum would exceed `total - reserve`; the message holds the figures.
    """
    usable = max(total - reserve, 0)
    left = max(usable - promised, 0)
    if asked <= left:
        return
    details: dict[str, object] = {
        "asked_bytes": asked,
        "left_bytes": left,
        "promised_bytes": promised,
        "usable_bytes": usable,
    }
    if asked > usable:
        raise HostMemoryShort(
            f"This environment needs {_gib(asked)} of host memory, more than the {_gib(usable)} that this "
            "machine has for servers.",
            next_step="Choose an environment that needs less.",
            details=details,
        )
    raise HostMemoryShort(
        f"Your server needs {_gib(asked)} of host memory and {_gib(left)} are left: {_gib(promised)} of "
        f"{_gib(usable)} are promised to other servers.",
        next_step="Choose an environment that needs less, stop a server that you do not need, or try later.",
        details=details,
    )


def _gib(size: int) -> str:
    return f"{size / _GIB:.1f} GiB"
