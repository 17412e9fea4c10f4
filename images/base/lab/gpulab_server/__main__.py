"""The entry of a lab image: `gpulab-start`."""

from __future__ import annotations

import gc
import os
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from gpulab_server import lean, ssh
from gpulab_server.runtime import find_runtime, make_directories, server_environment
from gpulab_server.start import HELP, Refused, Start, decide


def main() -> None:
    """Prepare the container and become what it was started for."""
    try:
        start = decide(sys.argv[1:], os.environ, os.geteuid())
        if start.kind == "help":
            print(HELP)
            return
        runtime = find_runtime(os.geteuid())
    except Refused as refusal:
        sys.exit(f"gpulab-start: {refusal}")
    prepare(runtime)
    if start.kind == "command":
        run_command(start.arguments)
    ssh.start(os.environ, runtime)
    run_jupyter(start)


def prepare(runtime: Path) -> None:
    """Set this process's environment, which kernels, terminals and commands inherit."""
    home = Path(os.environ.get("HOME") or "/home/lab")
    more = server_environment(os.environ, runtime, home, Path("/proc/self/mounts").read_text())
    os.environ.update(more)
    make_directories(more)
    for notice in more.get("GPULAB_NOTICES", "").splitlines():
        print(f"gpulab-start: {notice}", file=sys.stderr)


def run_command(arguments: tuple[str, ...]) -> None:
    """Become a command."""
    try:
        os.execvp(arguments[0], arguments)  # noqa: S606
    except OSError as error:
        sys.exit(f"gpulab-start: {arguments[0]}: {error.strerror}")


def run_jupyter(start: Start) -> None:
    """Run Jupyter in this process until it is stopped."""
    # What is imported stays for good: collecting garbage meanwhile would only search it again and again.
    gc.disable()
    with left_out(start):
        from jupyterlab.labapp import LabApp

        if start.kind == "hub":
            from gpulab_server.server import launch
    gc.freeze()
    gc.enable()
    if start.kind == "hub":
        launch(list(start.arguments))
    else:
        LabApp.launch_instance(list(start.arguments))


def left_out(start: Start) -> AbstractContextManager[None]:
    """Return the context for Jupyter's imports."""
    if not start.lean:
        return nullcontext()
    if not lean.is_pinned():
        print(
            f"gpulab-start: this JupyterHub is not {lean.PINNED}: starting with all imports", file=sys.stderr
        )
        return nullcontext()
    return lean.standing_in()


if __name__ == "__main__":
    main()
