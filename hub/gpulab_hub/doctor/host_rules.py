"""Rules on the host's limits and space, and on the lab itself. Pure."""

from __future__ import annotations

from gpulab_hub.doctor.facts import Facts, Place
from gpulab_hub.doctor.finding import Finding, fail, off, ok, warn

_GIB = 2**30
_INSTANCES = 128
"""inotify instances a person: a few for each of JupyterLab, VS Code's server and its watchers."""
_WATCHES = 65536
"""inotify watches a person: VS Code takes one a directory of the opened folder."""
_FILES = 65536
_SERVERS = 8
"""Servers at their limit of processes that the host must hold."""
_NETWORKED = ("nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p", "lustre", "ceph", "glusterfs")


def inotify(facts: Facts) -> Finding:
    """Check how many files a person's programs may watch; each person has a host uid of their own."""
    instances, watches = facts.host.inotify_instances, facts.host.inotify_watches
    if instances is None or watches is None:
        return off("inotify", "the limits cannot be read")
    found = f"{instances} instances and {watches} watches for each person"
    if instances < _INSTANCES or watches < _WATCHES:
        return warn(
            "inotify",
            f"{found}: editors and notebooks will stop seeing changes",
            f"Set fs.inotify.max_user_instances={4 * _INSTANCES} and"
            f" fs.inotify.max_user_watches={8 * _WATCHES} in /etc/sysctl.d/.",
        )
    return ok("inotify", found)


def pids(facts: Facts) -> Finding:
    """Check that some servers at their limit leave the host process ids."""
    have, need = facts.host.pid_max, _SERVERS * facts.lab.server_pids
    if have is None:
        return off("pids", "the limit cannot be read")
    if have < need:
        return warn(
            "pids",
            f"the host has {have} process ids; {_SERVERS} servers at servers.pids take {need}",
            "Raise kernel.pid_max and kernel.threads-max in /etc/sysctl.d/, or lower servers.pids.",
        )
    return ok("pids", f"{have} process ids")


def files(facts: Facts) -> Finding:
    """Check how many files a process may open: the proxy holds two a connection."""
    have = facts.host.open_files
    if have is None:
        return off("files", "the limit cannot be read")
    if have < _FILES:
        return warn("files", f"a process may open {have} files", f"Raise fs.nr_open to {_FILES} or more.")
    return ok("files", f"a process may open {have} files")


def space(facts: Facts) -> list[Finding]:
    """Check the free space of every place that fills up."""
    return [_space(place) for place in facts.host.places]


def _space(place: Place) -> Finding:
    check = f"space:{place.what.replace(' ', '-')}"
    if place.free is None:
        return fail(check, f"{place.path} ({place.what}) is not there", "Make it, or mount its filesystem.")
    found = f"{place.path} ({place.what}) has {place.free / _GIB:.1f} GiB free"
    if place.free < place.need:
        return fail(check, f"{found} and needs {place.need / _GIB:.1f} GiB", "Make room.")
    if place.free < 2 * place.need:
        return warn(
            check, f"{found}, close to the {place.need / _GIB:.1f} GiB that it needs", "Make room soon."
        )
    return ok(check, found)


def local_state(facts: Facts) -> Finding:
    """Refuse a state directory on a network filesystem, where SQLite's locks do not hold."""
    state = next((p for p in facts.host.places if p.what == "state"), None)
    if state is None or state.filesystem is None:
        return off("filesystem", "the state directory's filesystem is not known")
    if state.filesystem in _NETWORKED:
        return fail(
            "filesystem",
            f"{state.path} is on {state.filesystem}: database locks do not hold there",
            "Move the state directory to a local disk; homes may stay on the network (storage.root).",
        )
    return ok("filesystem", f"{state.path} is on {state.filesystem}")


def port(facts: Facts) -> Finding:
    """Say whether somebody else holds the lab's port."""
    if facts.lab.port_taken_by:
        return fail(
            "port",
            f"{facts.lab.listen} is held by {facts.lab.port_taken_by}, not by the lab's proxy",
            "End that process, or change listen.port and run deploy/up.",
        )
    return ok("port", f"{facts.lab.listen} is the lab's")


def image(facts: Facts) -> Finding:
    """Say whether the default image is on this machine."""
    if facts.lab.image_here is None:
        return off("image", "Docker does not answer")
    if not facts.lab.image_here:
        named = facts.lab.image or "the default image"
        return fail("image", f"{named} is not on this machine", "Build it: gpulab images build.")
    return ok("image", f"{facts.lab.image} is here")


def database(facts: Facts) -> Finding:
    """Say whether the database is there and at this release's revision."""
    if facts.lab.database_problem:
        return fail("database", facts.lab.database_problem, "Run gpulab db upgrade, or see its message.")
    return ok("database", f"{facts.lab.database} is at this release's revision")


def storage(facts: Facts) -> Finding:
    """Say whether a container sees the storage root that the lab sees."""
    if not facts.lab.storage_looked:
        return off("storage", "not looked at: it needs root, Docker and the image", "Run the doctor as root.")
    if facts.lab.storage_problem:
        return fail(
            "storage",
            facts.lab.storage_problem,
            "Use this machine's own engine, or let it see the lab's directories at the same paths.",
        )
    return ok("storage", "a container sees the lab's storage root")


def memlock(facts: Facts) -> Finding:
    """Say whether servers may lock memory without limit."""
    able = facts.lab.memlock
    if able is None:
        return off("memlock", "not tried: it needs root, Docker and the image", "Run the doctor as root.")
    if able != facts.lab.memlock_kept:
        says = "can" if able else "cannot"
        return warn(
            "memlock",
            f"Docker {says} lift the memlock limit, unlike before",
            "Run deploy/up to take it over.",
        )
    if not able:
        return warn(
            "memlock",
            "Docker may not lift the memlock limit here: large pinned buffers may be refused",
            "Raise LimitMEMLOCK of Docker's service to infinity, then run deploy/up.",
        )
    return ok("memlock", "servers may lock memory without limit")


def limits(facts: Facts) -> Finding:
    """Check whether gpulab.yaml says of limits what the database says; the database is what counts."""
    found = facts.lab.limit_differences
    if found is None:
        return off("limits", "the database was not read")
    if not found:
        return ok("limits", "gpulab.yaml says nothing else than the database")
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return warn(
        "limits",
        f"gpulab.yaml does not count any more: {'; '.join(found[:3])}{more}",
        "Set what you want with gpulab quota set, then write it into the file or take limits out of it.",
    )
