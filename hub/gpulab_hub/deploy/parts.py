"""The steps of `deploy/up` that the lab's other packages do: image, database, simulated machine, first admin.

They are imported when they are needed, so that a taken port is told without loading a database driver.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from docker import DockerClient

from gpulab_hub.catalogue import catalogue_of
from gpulab_hub.deploy.machine import CommandFailed, Machine
from gpulab_hub.deploy.users import HUB
from gpulab_hub.doctor.docker_facts import read_specs
from gpulab_hub.doctor.facts import EngineFacts
from gpulab_hub.doctor.injection import CDI_SINCE
from gpulab_hub.doctor.versions import at_least
from gpulab_hub.paths import LabPaths
from gpulab_hub.settings import Settings, require_apart
from gpulab_spawner.errors import LabError

FIRST_ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Invite:
    """A link that sets somebody's password.

    Attributes:
        name: Whose.
        url: The link; its secret is in the fragment, which browsers do not send.
    """

    name: str
    url: str


def check_settings(settings: Settings, paths: LabPaths) -> None:
    """Check what of gpulab.yaml only its use shows to be wrong.

    Raises:
        ConfigError: A profile is, or a shared directory.
    """
    catalogue_of(settings, image="")
    require_apart(settings, paths.state)


def upgrade_database(machine: Machine, paths: LabPaths) -> str:
    """Bring the database to this release's revision, as the lab's user, who owns its file.

    Raises:
        LabError: It cannot be; the error holds what `gpulab db upgrade` said.
    """
    command = [str(paths.venv / "bin/gpulab"), "db", "upgrade", "--state", str(paths.state)]
    try:
        said = machine.run(command, user=HUB).strip().splitlines()
    except CommandFailed as error:
        words = error.output.strip().removeprefix("gpulab: ")
        raise LabError(words or error.message) from error
    return said[-1] if said else "is at this release's revision"


def machine_name(machine: str) -> str:
    """Return the name of a simulated machine after reading its description.

    Raises:
        ConfigError: There is none of that name, or its file is wrong.
    """
    from gpulab_hub.simulate import shipped

    shipped.read(machine)
    return shipped.description(machine)[0]


def prepare_simulation(machine: Machine, paths: LabPaths, wanted: str) -> str:
    """Prepare the simulated machine, installing a compiler where one is needed; return what it is, in words.

    Args:
        machine: Where the lab is.
        paths: The lab's paths.
        wanted: Shipped name or path of a YAML file at first, later the name alone.

    Raises:
        LabError: It cannot be prepared here.
    """
    from gpulab_hub.simulate import shipped, stage

    found = stage.find(paths.simulate)
    if found is not None and wanted == found.name and wanted not in shipped.machines():
        # A machine of the site's own: what it was made from is kept beside it.
        stage.refresh(found)
        return f"SIMULATED: {found.name} is ready"
    if machine.which("gcc") is None and machine.which("apt-get") is not None:
        install(machine, "gcc", "libc6-dev")
    # The lab's id makes the UUIDs its own: another lab's devices may be offered to the same engine.
    lab = paths.hub_id.read_text(encoding="ascii").strip()
    return f"SIMULATED: {stage.prepare(wanted, paths.simulate, lab=lab).name} is ready"


def offer_cdi(paths: LabPaths, hub_id: str, engine: EngineFacts, root: Path = Path("/")) -> str | None:
    """Write the CDI specification of the simulated machine where the engine looks; return its path.

    Nothing is written for an engine that knows no CDI, or where another file defines these devices: two files
    with one name in them spoil it for both. One of an earlier run is removed then.

    Args:
        paths: The lab's paths.
        hub_id: The lab's id.
        engine: What the engine says of itself.
        root: What the engine's directories are below.

    Raises:
        CannotOffer: The file cannot be written.
    """
    from gpulab_hub.simulate import injection, offering, stage

    machine = stage.find(paths.simulate)
    if machine is None:
        return None
    if machine.has_nodes and engine.cdi.directories and at_least(engine.version or "", CDI_SINCE):
        directories = [root / d.lstrip("/") for d in engine.cdi.directories]
        ours = directories[0] / f"gpulab-{hub_id}.json"
        others = read_specs(directories, root, skip=ours)
        if not {f"{injection.CDI_KIND}={name}" for name in injection.cdi_names(machine)} & others.names:
            return str(ours) if offering.offer(machine, ours) else None
    offering.withdraw(machine)
    return None


def build_image(
    machine: Machine, paths: LabPaths, client: DockerClient, say: Callable[[str], None]
) -> tuple[str, str]:
    """Build the default image unless it is there and nothing has changed; return its reference and words.

    Args:
        machine: Where the lab is.
        paths: The lab's paths.
        client: The engine.
        say: Takes a line of progress.

    Raises:
        LabError: It does not build.
    """
    from gpulab_hub.images.build import build
    from gpulab_hub.images.failures import BuildFailed
    from gpulab_hub.images.site import gather

    def attempt() -> tuple[str, str]:
        built = build("base", client, site=gather(os.environ), cache=paths.state / "cache", say=say)
        size = f"{built.size_bytes / 1e6:.0f} MB"
        return built.reference, f"{built.reference} ({size}) {'built' if built.fresh else 'is there'}"

    try:
        return attempt()
    except BuildFailed:
        if machine.which("debootstrap") or not machine.which("apt-get"):
            raise
    # No base image to pull, and none that could be made.
    say("installing debootstrap")
    install(machine, "debootstrap")
    return attempt()


def install(machine: Machine, *packages: str) -> None:
    """Install packages of the distribution.

    Raises:
        CommandFailed: apt-get does not.
    """
    env = {"DEBIAN_FRONTEND": "noninteractive"}
    machine.run(["apt-get", "update", "-qq"], env=env)
    machine.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages], env=env)


def simulation_environment(paths: LabPaths) -> dict[str, str]:
    """Return the variables by which a process sees the lab's simulated machine; none on a real one."""
    from gpulab_hub.simulate import stage

    return stage.environment(paths)


def first_invite(paths: LabPaths, settings: Settings, url: str, now: float) -> Invite | None:
    """Return a new invite for the first admin, None once any admin has set a password.

    Raises:
        LabError: The database does not answer.
    """
    from gpulab_hub.accounts import Accounts
    from gpulab_hub.database import lab_database
    from gpulab_hub.roster import Entry

    engine = lab_database(paths)
    try:
        accounts = Accounts(engine, settings.auth.local.password_min_length)
        admins = [account for account in accounts.everyone(now) if account.admin]
        if any(account.password_set_at is not None for account in admins):
            return None
        ends = now + settings.auth.local.invite_days * 86400
        if admins:
            made = accounts.invite(admins[0].name, now, ends)
        else:
            made = accounts.add([Entry(FIRST_ADMIN, admin=True)], now, ends)[0]
    finally:
        engine.dispose()
    return Invite(made.name, f"{url}/hub/invite#{made.secret}")
