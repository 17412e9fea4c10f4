"""Rules on Docker, CDI and the NVIDIA Container Toolkit. Pure."""

from __future__ import annotations

from gpulab_hub.doctor.facts import Facts
from gpulab_hub.doctor.finding import Finding, fail, off, ok, warn
from gpulab_hub.doctor.injection import CDI_SINCE, SAFE_TOOLKIT, choose_injection, missing_names
from gpulab_hub.doctor.versions import at_least

_OLDEST = "20.10"
_REFRESH = "Make it anew: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml."


def docker(facts: Facts) -> Finding:
    """Say whether Docker answers and is new enough."""
    engine = facts.engine
    if engine.version is None:
        return fail("docker", engine.problem or "Docker does not answer", "Start Docker, then look again.")
    if not at_least(engine.version, _OLDEST):
        return fail("docker", f"Docker {engine.version} is older than {_OLDEST}", "Upgrade Docker.")
    return ok("docker", f"Docker {engine.version} answers at {engine.url.removeprefix('unix://')}")


def live_restore(facts: Facts) -> Finding:
    """Say whether Docker's own restart leaves the servers running."""
    if facts.engine.live_restore is None:
        return off("live-restore", "Docker does not answer")
    if facts.engine.live_restore:
        return ok("live-restore", "servers outlive a restart of Docker")
    return warn(
        "live-restore",
        "live-restore is off: a restart or upgrade of Docker ends every server",
        'Put "live-restore": true into /etc/docker/daemon.json and reload Docker (systemctl reload docker).',
    )


def cdi(facts: Facts) -> Finding:
    """Compare the engine's CDI specs with the devices of this machine."""
    engine, gpu = facts.engine, facts.gpu
    if engine.version is None:
        return off("cdi", "Docker does not answer")
    if not gpu.expected:
        return off("cdi", "no GPU here")
    if not at_least(engine.version, CDI_SINCE):
        return off("cdi", f"Docker {engine.version} has no CDI; it came with {CDI_SINCE}")
    if not engine.cdi.directories:
        return warn("cdi", "CDI is off in Docker", 'Turn it on: "features": {"cdi": true} in daemon.json.')
    if engine.cdi.shadowed:
        return warn(
            "cdi",
            f"two specs define {engine.cdi.shadowed[0]}, and one of them hides or breaks the other",
            "Remove the older spec.",
        )
    if missing := missing_names(gpu, engine):
        return warn(
            "cdi", f"no spec names {missing[0]} ({len(missing)} of {len(gpu.device_uuids)})", _REFRESH
        )
    if engine.cdi.missing_nodes:
        return warn("cdi", f"a spec names {engine.cdi.missing_nodes[0]}, which is not there", _REFRESH)
    if gpu.driver and not gpu.simulate and engine.cdi.drivers and gpu.driver not in engine.cdi.drivers:
        made_for = ", ".join(sorted(engine.cdi.drivers))
        return warn("cdi", f"the spec is for driver {made_for}, and {gpu.driver} is loaded", _REFRESH)
    return ok("cdi", f"the specs name all {len(gpu.device_uuids)} devices")


def toolkit(facts: Facts) -> Finding:
    """Check the NVIDIA Container Toolkit against its known escapes, whether the lab uses it or not."""
    version = facts.engine.toolkit
    if version is None:
        return off(
            "nvidia-toolkit", "the NVIDIA Container Toolkit is not installed; cdi and devices need none"
        )
    if not at_least(version, SAFE_TOOLKIT):
        return fail(
            "nvidia-toolkit",
            f"the NVIDIA Container Toolkit {version} lets images run code as root here (CVE-2025-23266)",
            f"Upgrade it to {SAFE_TOOLKIT} or newer.",
        )
    return ok("nvidia-toolkit", f"NVIDIA Container Toolkit {version}")


def default_runtime(facts: Facts) -> Finding:
    """Warn where every container goes through the NVIDIA hook."""
    runtime = facts.engine.default_runtime
    if runtime is None:
        return off("default-runtime", "Docker does not answer")
    if runtime != "nvidia":
        return ok("default-runtime", f"containers run with {runtime} unless they ask otherwise")
    return warn(
        "default-runtime",
        "nvidia is Docker's default runtime: a container whose image says NVIDIA_VISIBLE_DEVICES=all sees"
        " every GPU; the lab's servers do not, others here do",
        'Remove "default-runtime" from /etc/docker/daemon.json.',
    )


def cgroup_driver(facts: Facts) -> Finding:
    """Warn where a reload of systemd takes GPUs from running containers."""
    found = facts.engine.cgroup_driver
    if found is None:
        return off("cgroup-driver", "Docker does not answer")
    way = choose_injection(facts.gpu, facts.engine, facts.lab.injection)
    if found == "systemd" and way == "nvidia" and facts.gpu.expected:
        return warn(
            "cgroup-driver",
            "cgroups are systemd's and GPUs come by the NVIDIA runtime: `systemctl daemon-reload`, which"
            " unattended upgrades run, takes the GPUs from running servers",
            "Use CDI, or set engine.injection: devices.",
        )
    return ok("cgroup-driver", f"{found}; running servers keep their GPUs through a daemon-reload")
