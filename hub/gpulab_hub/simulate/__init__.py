"""Simulated machines: NVIDIA GPUs that exist for NVML and for Docker, and for nothing else.

A machine is YAML (`machine`). `stage.prepare` makes of it a directory with four things:

    lib/.../libnvidia-ml.so.1   a C library that answers NVML's calls, loaded by the real binding
    state                       what the machine is and does: a file that every user of the library maps,
                                so that a change (`live`) is seen everywhere at once
    dev/                        stand-in device nodes, with majors that no driver serves
    proc/driver/                the part of /proc that the driver fills

A process sees the machine by the environment of `stage.environment`. A container gets the library, the state
and its device nodes (`injection`); the library lists those GPUs and MIG devices whose nodes are in /dev and
open to the container's cgroup, as the real one does. Nothing in a container can widen that: neither its
environment nor a node that it makes itself.
"""
