"""The steps of `deploy/up`, in their order. Each may run again: what is right already stays as it is.

Nothing of the state directory is written before the engine answers, the settings and the machine file are
read, and the port is known to be free.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

from gpulab_hub import locks
from gpulab_hub.deploy import (
    engine,
    gpus,
    layout,
    network,
    parts,
    ports,
    preflight,
    processes,
    proxy,
    site,
    supervise,
    users,
)
from gpulab_hub.deploy import options as flags
from gpulab_hub.deploy import record as records
from gpulab_hub.deploy.gpus import Choice
from gpulab_hub.deploy.machine import Machine, ThisMachine
from gpulab_hub.deploy.options import Options
from gpulab_hub.deploy.progress import Progress, Words
from gpulab_hub.deploy.record import LabRecord
from gpulab_hub.doctor import docker_facts, examination
from gpulab_hub.paths import LabPaths
from gpulab_hub.settings import Settings
from gpulab_spawner.errors import LabError

IMAGE_NEED = 6 * preflight.GIB
"""Free bytes below Docker's directory before the first image is built."""
_PROXY_API_PORTS = range(8001, 8081)
_HUB_PORTS = range(8081, 8181)
_SERVICE_PORTS = range(8181, 8281)


@dataclass(frozen=True, slots=True)
class Found:
    """What the first steps learnt, before anything was written.

    Attributes:
        settings: The site's settings.
        engine: The engine's address.
        choice: Real GPUs, simulated ones, or none.
        record: The lab's record, None at the first `up`.
    """

    settings: Settings
    engine: engine.Address
    choice: Choice
    record: LabRecord | None


def bring_up(options: Options, machine: Machine, progress: Progress) -> None:
    """Install what is missing, start the lab, and print its URL and the first admin's invite.

    Raises:
        LabError: A step failed; the error says what is wrong and what to do.
    """
    preflight.check(options, machine)
    paths = LabPaths(options.state)
    found = look(options, machine, paths, progress)
    with progress.step("Proxy") as words:
        node = install_proxy(options, machine, paths, words)
    with progress.step("System users") as words:
        words.append(users.ensure(machine, users.socket_group(found.engine.url)))
    with progress.step("State directory") as words:
        words.append(layout.ensure(machine, paths))
    with progress.step("Settings file") as words:
        words.append(site.ensure(paths.config, options.source / "config/gpulab.yaml", options))
        machine.own(paths.config, "root", users.HUB, 0o640)
    with progress.step("Network") as words:
        record = choose(options, machine, paths, found, words)
    with progress.step("Database") as words:
        words.append(parts.upgrade_database(machine, paths))
    if record.simulate:
        with progress.step("Simulated machine") as words:
            words.append(parts.prepare_simulation(machine, paths, options.simulate or record.simulate))
            facts, _ = docker_facts.engine_facts(record.engine, None)
            if spec := parts.offer_cdi(paths, record.hub_id, facts):
                words.append(f"CDI specification at {spec}")
    with progress.step("Image") as words:
        record = replace(record, image=build_image(machine, paths, record, words))
    with progress.step("Memory locks") as words:
        record = replace(record, memlock=examination.memlock(record))
        words.append("servers have no limit" if record.memlock else "Docker may not lift the limit here")
    records.save(paths.state, record)
    start(options, machine, paths, record, node, progress)
    finish(machine, paths, found.settings, record, progress)


def look(options: Options, machine: Machine, paths: LabPaths, progress: Progress) -> Found:
    """Read the settings, find the engine and decide on the GPUs; write nothing of the lab."""
    with progress.step("Settings") as words:
        settings = site.read(paths.config, options.source / "config/gpulab.yaml", options)
        record = records.load(paths.state)
        preflight.check_port(machine, paths, record, settings.listen.address, settings.listen.port)
        parts.check_settings(settings, paths)
        words.append(f"{settings.listen.address}, port {settings.listen.port}")
    named = parts.machine_name(options.simulate) if options.simulate else None
    with progress.step("Docker Engine") as words:
        where = engine.address(settings.engine.url, os.environ)
        log = Path("/var/log/dockerd.log")
        words.extend(engine.ensure(machine, where, log))
    with progress.step("GPUs") as words:
        choice = gpus.decide(
            named,
            record,
            len(gpus.nvidia_gpus()),
            yes=options.yes,
            terminal=machine.has_terminal(),
        )
        words.append(choice.words)
    if choice.ask and ask(
        f"Simulate the machine {gpus.DEFAULT_MACHINE}, to try the lab without a GPU? [y/N] "
    ):
        choice = Choice(gpus.DEFAULT_MACHINE, f"SIMULATED: {gpus.DEFAULT_MACHINE}")
    return Found(settings, where, choice, record)


def ask(question: str) -> bool:
    """Return whether the admin answers a question with yes."""
    return input(f"  {question}").strip().lower() in ("y", "yes")


def install_proxy(options: Options, machine: Machine, paths: LabPaths, words: list[str]) -> str:
    """Install Node.js where needed and the proxy; return the path of node."""
    source = options.source / "deploy/proxy"
    need = proxy.needed_node((source / "package-lock.json").read_text(encoding="utf-8"))
    node = proxy.find_node(machine, paths, need, options.source / "deploy/requirements-node.txt")
    words.extend([proxy.ensure(machine, paths, node, source), node.words])
    return node.node


def choose(options: Options, machine: Machine, paths: LabPaths, found: Found, words: list[str]) -> LabRecord:
    """Make the network, choose what is chosen once, keep what was chosen before, and save the record."""
    hub_id = paths.hub_id.read_text(encoding="ascii").strip()
    name = found.settings.engine.network or f"gpulab-{hub_id}"
    client = engine.connect(found.engine.url)
    gateway, done = network.ensure(client, name, hub_id, Path("/proc/net/route").read_text(encoding="ascii"))
    words.append(f"{done}, servers apart from each other")
    old, mine = found.record, found.settings.listen.port
    record = LabRecord(
        hub_id=hub_id,
        release=preflight.release(options.source),
        listen=found.settings.listen.address,
        port=found.settings.listen.port,
        proxy_api_port=_internal_port(
            machine,
            "127.0.0.1",
            _PROXY_API_PORTS,
            mine,
            old.proxy_api_port if old else None,
            preflight.proxy_lock(paths),
        ),
        hub_port=_internal_port(
            machine, gateway, _HUB_PORTS, mine, old.hub_port if old else None, paths.run / "hub.lock"
        ),
        service_port=_internal_port(
            machine,
            "127.0.0.1",
            _SERVICE_PORTS,
            mine,
            old.service_port if old else None,
            paths.run / "service.lock",
        ),
        network=name,
        gateway=gateway,
        engine=found.engine.url,
        supervisor="systemd" if machine.has_systemd() else "supervisord",
        simulate=found.choice.simulate,
        image=old.image if old else "",
        memlock=old.memlock if old else False,
    )
    records.save(paths.state, record)
    return record


def _internal_port(
    machine: Machine, address: str, candidates: range, public: int, kept: int | None, lock: Path
) -> int:
    """Return the port of an earlier run where it is still ours or free, else the first candidate that is."""

    def is_free(port: int) -> bool:
        return port != public and machine.why_not(address, port) is None

    if kept and (locks.held(lock) or is_free(kept)):
        return kept
    port = ports.first_free(candidates, is_free)
    if port is None:
        raise preflight.NotReady(
            f"No port from {candidates.start} to {candidates.stop - 1} is free on {address}.",
            next_step="End a process that holds one.",
        )
    return port


def build_image(machine: Machine, paths: LabPaths, record: LabRecord, words: Words) -> str:
    """Build the default image unless it is there; return its reference."""
    client = engine.connect(record.engine)
    root = Path(str(client.info()["DockerRootDir"]))
    # An engine in another root has its directory where we cannot look.
    if not record.image and root.is_dir():
        preflight.check_space(machine, root, IMAGE_NEED)
    reference, done = parts.build_image(machine, paths, client, words.say)
    words.append(done)
    return reference


def start(
    options: Options,
    machine: Machine,
    paths: LabPaths,
    record: LabRecord,
    node: str,
    progress: Progress,
) -> None:
    """Start the processes, or restart those that read something which has changed since."""
    with progress.step("Processes") as words:
        config = (options.source / "config/jupyterhub_config.py").read_text(encoding="utf-8")
        layout.write_new(processes.hub_config(paths), config, 0o644)
        keeper = supervise.supervisor(paths, record, machine, options.source / "deploy/systemd")
        lab = processes.lab_processes(
            paths,
            record,
            node=node,
            proxy_token=paths.proxy_token.read_text(encoding="ascii").strip(),
            stamps=stamps(paths, config),
            agent_environment=parts.simulation_environment(paths),
        )
        words.append(keeper.apply(lab))
    with progress.step("Hub") as words:
        supervise.wait_until_answers(f"{record.url}/hub/health", keeper)
        words.append("answers")


def stamps(paths: LabPaths, hub_config: str) -> dict[str, str]:
    """Return for each process the digest of what a running one has read."""
    installed = (paths.venv / ".installed").read_text(encoding="ascii")
    proxy_installed = (paths.proxy / ".installed").read_text(encoding="ascii")
    record = records.path_of(paths.state).read_text(encoding="utf-8")
    config = paths.config.read_text(encoding="utf-8")
    return {
        "agent": processes.stamp(installed, record),
        "proxy": processes.stamp(proxy_installed),
        "service": processes.stamp(installed, record, config),
        "hub": processes.stamp(installed, record, config, hub_config),
    }


def finish(
    machine: Machine, paths: LabPaths, settings: Settings, record: LabRecord, progress: Progress
) -> None:
    """Print where the lab is, the first admin's invite, what to know, and how it starts at boot."""
    url = public_url(settings, record)
    invite = parts.first_invite(paths, settings, url, time.time())
    link_command(paths)
    progress.say()
    progress.say(f"GPU Lab runs at {url}" + (" (SIMULATED GPUs)" if record.simulate else ""))
    if invite:
        progress.say(f"First admin's invite, for {invite.name}: {invite.url}")
    if record.listen not in ("127.0.0.1", "::1", "localhost") and url.startswith("http://"):
        progress.say("It listens beyond this machine without TLS: passwords travel readable on the network.")
    progress.say(supervise.supervisor(paths, record, machine).at_boot())
    progress.say(
        f"Look after it with: {paths.venv / 'bin/gpulab'} status | doctor | down  --state {paths.state}"
    )


def public_url(settings: Settings, record: LabRecord) -> str:
    """Return the URL that people type."""
    if settings.listen.public_url:
        return settings.listen.public_url.rstrip("/")
    if record.listen in ("0.0.0.0", "::", ""):  # noqa: S104
        return f"http://{socket.getfqdn()}:{record.port}"
    return record.url


def link_command(paths: LabPaths, place: Path = Path("/usr/local/bin/gpulab")) -> None:
    """Put `gpulab` on the admin's path, unless something is there already."""
    if not place.exists() and place.parent.is_dir():
        place.unlink(missing_ok=True)
        place.symlink_to(paths.venv / "bin/gpulab")


def main() -> None:
    """Bring the lab up; end with status 1 and words where a step fails."""
    options = flags.parse(sys.argv[1:], Path(os.environ["GPULAB_SOURCE"]))
    os.umask(0o022)
    try:
        bring_up(options, ThisMachine(), Progress(sys.stdout))
    except LabError as error:
        sys.exit(f"deploy/up: {error}")
    except KeyboardInterrupt:
        sys.exit("\ndeploy/up: interrupted; run it again to go on.")


if __name__ == "__main__":
    main()
