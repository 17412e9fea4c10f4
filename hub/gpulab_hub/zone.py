"""The site's time zone: the settings' own, else the machine's."""

from __future__ import annotations

import os
from datetime import UTC, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from gpulab_hub.settings import Settings

LOCALTIME = Path("/etc/localtime")


def site_zone(settings: Settings) -> tzinfo:
    """Return the time zone whose days and times reports mean; a name is shown by `zone_name`."""
    if settings.time_zone is not None:
        return ZoneInfo(settings.time_zone)
    return machine_zone(os.environ.get("TZ"), LOCALTIME)


def machine_zone(variable: str | None, localtime: Path) -> tzinfo:
    """Return the machine's time zone, UTC if it has none.

    Args:
        variable: The TZ variable of the environment; one that names no known zone counts for nothing.
        localtime: The file that says it otherwise, a link into the zone database or a copy of an entry.
    """
    if variable:
        try:
            return ZoneInfo(variable.removeprefix(":"))
        except (ValueError, OSError, ZoneInfoNotFoundError):
            pass
    try:
        _, found, name = str(localtime.resolve()).partition("/zoneinfo/")
        with localtime.open("rb") as file:
            return ZoneInfo.from_file(file, key=name if found else None)
    except (ValueError, OSError):
        return UTC


def zone_name(zone: tzinfo) -> str:
    """Return how a time zone is called."""
    return getattr(zone, "key", None) or ("UTC" if zone is UTC else "the machine's time")
