"""What a simulated GPU can be: models of cards and their MIG profiles. Pure; the data is in models.yaml."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Closed(BaseModel):
    """A closed, immutable record of a YAML file."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class MigProfile(Closed):
    """A GPU instance profile.

    Attributes:
        name: As the driver names it, `1g.10gb`.
        id: Profile id.
        number: Place in NVML's enumeration of profiles.
        starts: Memory slices at which an instance may begin.
        most: How many instances of it a card holds at most.
        exclusive_media: Whether it has the card's media engines to itself.
    """

    name: str
    id: int
    number: int
    compute_slices: int
    memory_slices: int
    starts: tuple[int, ...]
    most: int
    sms: int
    memory_mib: int
    copy_engines: int = Field(alias="copy")
    decode: int
    jpeg: int
    ofa: int
    exclusive_media: bool = False


class Model(Closed):
    """A model of card; clocks in MHz, memory in MiB, power in watts."""

    name: str
    pci_id: int
    subsystem_id: int = 0
    compute_capability: tuple[int, int]
    architecture: int
    cores: int
    memory_mib: int
    reserved_mib: float
    limit_watts: int
    sm_max_mhz: int
    memory_max_mhz: int
    nvlinks: int
    min_driver: str
    compute_slices: int
    memory_slices: int
    profiles: tuple[MigProfile, ...]

    def profile(self, name: str) -> MigProfile | None:
        """Return the profile of a name, or None."""
        return next((p for p in self.profiles if p.name == name), None)
