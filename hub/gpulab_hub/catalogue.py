"""The lab's catalogue: the profiles of gpulab.yaml with the site's defaults. Pure."""

from __future__ import annotations

from gpulab_hub.settings import Settings
from gpulab_spawner.profiles import Catalogue, Defaults, read_profiles


def catalogue_of(settings: Settings, image: str) -> Catalogue:
    """Return the profiles with the site's defaults.

    Args:
        settings: The settings.
        image: Image of the profiles that name none.

    Raises:
        ConfigError: A profile is wrong, or a default of all of them.
    """
    servers = settings.servers
    defaults = Defaults(
        image=image,
        memory_bytes=servers.memory,
        guarantee_bytes=servers.memory_guarantee,
        cpus=servers.cpus,
        shm_bytes=servers.shm,
        environment=servers.environment,
    )
    return read_profiles(settings.profiles, defaults)
