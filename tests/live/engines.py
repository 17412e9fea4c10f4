"""Docker Engines of the tests' own: the machine's and a current one, each with its own state and network.

    with debian_engine(tmp / "debian") as old, current_engine(tmp / "current") as new:
        old.client().version()["Version"], new.client().version()["Version"]   # 20.10.24, 28.5.2

`debian_engine` runs the dockerd that is installed here (Debian 12: 20.10, which knows no CDI). The other is
built from a newer Debian's packages and runs in a mount namespace of its own, in which the host's
directories are at their own paths: a bind source or a socket has the same name inside and outside, for
both engines. By hand: `python -m tests.live.engines current` prints its address and waits for Ctrl-C.

Cost on 2 cores: building the current engine 12 s, once per cache directory; starting it 3.2 s (2.7 s of
that unpacking), the machine's 0.3 s; stopping either 1.5 s.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import docker
from tests.live import cache
from tests.live.network import EngineNetwork

SCRIPTS = Path(__file__).with_name("engine")
REPOSITORY = Path(__file__).parents[2]

# System directories stay the engine's own; of /var and /usr it sees what a site or a user writes.
_OWN = {
    "bin",
    "sbin",
    "lib",
    "lib32",
    "lib64",
    "libx32",
    "usr",
    "etc",
    "var",
    "proc",
    "sys",
    "dev",
    "run",
    "boot",
}
_BELOW = ("/usr/local", "/var/lib", "/var/tmp", "/var/cache")

START_SECONDS = 60
STOP_SECONDS = 30


class EngineFailed(RuntimeError):
    """A Docker Engine did not start; the message holds the end of its log."""


@dataclass
class Engine:
    """A running Docker Engine.

    Attributes:
        name: "debian" or "current".
        state: Directory of all that the engine writes.
        network: Its subnet and default bridge.
        visible: Host directories that the engine sees; None means all.
        keeper: Process whose mount namespace the daemon runs in; None means the host's.
    """

    name: str
    state: Path
    network: EngineNetwork
    visible: tuple[Path, ...] | None = None
    keeper: subprocess.Popen[bytes] | None = None
    _daemon: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    _answered: bool = field(default=False, repr=False)

    @property
    def url(self) -> str:
        """Address of the API, as in DOCKER_HOST."""
        return f"unix://{self.state / 'docker.sock'}"

    @property
    def data(self) -> Path:
        """Its data directory."""
        return self.state / "data"

    @property
    def log(self) -> Path:
        """All that the daemon said since its first start."""
        return self.state / "dockerd.log"

    @property
    def cdi_dir(self) -> Path:
        """Where CDI specs of this engine belong; an engine without CDI never reads it."""
        return self.state / "cdi"

    @property
    def alive(self) -> bool:
        """Whether the daemon's process runs."""
        return self._daemon is not None and self._daemon.poll() is None

    def client(self, timeout: float = 60) -> docker.DockerClient:
        """Return a new client; whoever asks closes it."""
        return docker.DockerClient(base_url=self.url, timeout=int(timeout))

    def host_path(self, path: str | Path) -> str:
        """Return what the engine calls a path of the host, which is the same.

        Raises:
            ValueError: The engine sees something else there.
        """
        absolute = Path(path).resolve()
        if self.visible is not None and not any(absolute.is_relative_to(each) for each in self.visible):
            raise ValueError(f"{absolute} is not visible to the engine {self.name}; it sees {self.visible}")
        return str(absolute)

    def log_tail(self, lines: int = 30) -> str:
        """Return the last lines of the daemon's log."""
        text = self.log.read_text(errors="replace") if self.log.exists() else "(no log)"
        return "\n".join(text.splitlines()[-lines:])

    def start(self) -> None:
        """Start the daemon and wait until it answers.

        Raises:
            EngineFailed: It ended, or did not answer in time.
        """
        # A daemon that outlives a killed test session would keep its bridge and its mounts for ever.
        command = ["setpriv", "--pdeathsig", "TERM"]
        if self.keeper is not None:
            command += ["nsenter", f"--mount=/proc/{self.keeper.pid}/ns/mnt"]
        command += ["dockerd", "--config-file", str(self.state / "daemon.json")]
        # Beside a system-wide containerd, which dockerd would use, names keep apart what is whose.
        command += ["--containerd-namespace", self.network.bridge]
        command += ["--containerd-plugins-namespace", f"{self.network.bridge}-plugins"]
        environment = os.environ | {"PATH": f"{self.state / 'bin'}:/usr/sbin:/usr/bin:/sbin:/bin"}
        with self.log.open("ab") as log:
            self._daemon = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if not self.alive or time.monotonic() > deadline:
                raise EngineFailed(f"The engine {self.name} did not start. Its log ends:\n{self.log_tail()}")
            time.sleep(0.05)
        self._answered = True

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(5)
            try:
                connection.connect(str(self.state / "docker.sock"))
                connection.sendall(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")
                return b" 200 " in connection.recv(32)
            except OSError:
                return False

    def kill(self) -> None:
        """End the daemon without a chance to tidy up (SIGKILL), as a crash does."""
        self._signal(signal.SIGKILL)

    def restart(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Start the daemon again among the same mounts, stopping it first if it still runs."""
        self._signal(signal.SIGTERM)
        meanwhile()
        self.start()

    def _signal(self, number: signal.Signals) -> None:
        if self._daemon is None:
            return
        self._daemon.send_signal(number)
        try:
            self._daemon.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._daemon.kill()
            self._daemon.wait()
        self._wait_for_containerd()

    def _wait_for_containerd(self) -> None:
        # The kernel ends the daemon's containerd with it, a moment later; a daemon started in between takes
        # the dying one for its own and waits for it in vain.
        pid_file = self.state / "exec" / "containerd" / "containerd.pid"
        pid = pid_file.read_text().strip() if pid_file.exists() else ""
        deadline = time.monotonic() + STOP_SECONDS
        while pid and Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
            time.sleep(0.02)

    def shims(self) -> list[int]:
        """Return the pids of the processes that stand between this engine and its containers."""
        found = []
        for directory in Path("/proc").iterdir():
            with suppress(OSError):
                words = (directory / "cmdline").read_bytes().split(b"\0") if directory.name.isdigit() else []
                if words and b"shim" in words[0] and self.network.bridge.encode() in words:
                    found.append(int(directory.name))
        return found

    def remove_all(self) -> None:
        """Remove every container and every network that was made on this engine."""
        client = self.client()
        try:
            for container in client.containers.list(all=True, ignore_removed=True):
                container.remove(force=True, v=True)
            for network in client.networks.list(filters={"type": "custom"}):
                network.remove()
        finally:
            client.close()

    def stop(self) -> None:
        """Remove what runs on the engine, stop it, and undo its mounts, interfaces and firewall rules."""
        if not self.state.exists():
            return
        with ExitStack() as undo:
            undo.callback(shutil.rmtree, self.state)
            undo.callback(unmount_below, self.state)
            undo.callback(self.network.release)
            undo.callback(self._stop_keeper)
            # A daemon that is killed while it makes a container leaves a shim that no daemon finds again.
            undo.callback(lambda: [os.kill(pid, signal.SIGKILL) for pid in self.shims()])
            undo.callback(self._signal, signal.SIGTERM)
            if self._answered:
                if not self.alive:
                    self.start()
                self.remove_all()

    def _stop_keeper(self) -> None:
        if self.keeper is not None:
            self.keeper.terminate()
            self.keeper.wait(STOP_SECONDS)


@contextmanager
def debian_engine(state: Path, *, live_restore: bool = True) -> Iterator[Engine]:
    """Run the dockerd that is installed on this machine, with its state in a new directory.

    Raises:
        EngineFailed: It is not installed, or does not start.
    """
    if shutil.which("dockerd", path="/usr/sbin:/usr/bin") is None:
        raise EngineFailed("This machine has no dockerd. Install docker.io, or run tests/install as root.")
    engine = Engine("debian", _prepare(state), EngineNetwork.take())
    with _running(engine, live_restore):
        yield engine


@contextmanager
def current_engine(
    state: Path, *, live_restore: bool = True, directories: Sequence[Path] | None = None
) -> Iterator[Engine]:
    """Run a current Docker Engine with CDI, with its state in a new directory.

    Args:
        state: A directory that does not exist yet, below one of `directories`.
        live_restore: Whether containers survive the daemon.
        directories: Host directories that containers may bind; None takes all but the system's own.
            Mounts made later are seen only below a mount that is shared (see `shared_directory`).

    Raises:
        EngineFailed: It cannot be built, or does not start.
    """
    visible = tuple(directories or _host_directories())
    engine = Engine("current", _prepare(state), EngineNetwork.take(), visible)
    with _running(engine, live_restore):
        yield engine


def engine_tarball() -> Path:
    """Return the packed current engine, built at the first call of a cache directory.

    Raises:
        EngineFailed: The build failed; the message holds what it said.
    """
    script = SCRIPTS / "build-engine"

    def build(path: Path) -> None:
        done = subprocess.run([script, path], check=False, capture_output=True, text=True)
        if done.returncode:
            raise EngineFailed(f"The current engine cannot be built:\n{done.stderr[-3000:]}")

    return cache.once(f"engine-{cache.fingerprint([script])}.tar.xz", build)


@contextmanager
def shared_directory(path: Path) -> Iterator[Path]:
    """Make a directory below which a later mount reaches the engines that already run."""
    path.mkdir(parents=True)
    subprocess.run(["mount", "--bind", path, path], check=True)
    subprocess.run(["mount", "--make-rshared", path], check=True)
    try:
        yield path
    finally:
        unmount_below(path)


def _host_directories() -> list[Path]:
    top = [each for each in Path("/").iterdir() if each.is_dir() and not each.is_symlink()]
    found = [each for each in top if each.name not in _OWN and each.name != "lost+found"]
    return found + [Path(each) for each in _BELOW if Path(each).is_dir()]


def _prepare(state: Path) -> Path:
    state.mkdir(parents=True)
    (state / "cdi").mkdir()
    return state.resolve()


@contextmanager
def _running(engine: Engine, live_restore: bool) -> Iterator[None]:
    engine.network.write_wrappers(engine.state / "bin")
    (engine.state / "daemon.json").write_text(json.dumps(_configuration(engine, live_restore), indent=1))
    try:
        if engine.visible is not None:
            engine.keeper = _enter(engine.state, engine.visible)
        engine.start()
        yield
    finally:
        engine.stop()


def _enter(state: Path, visible: Sequence[Path]) -> subprocess.Popen[bytes]:
    root, ready, log = state / "root", state / "entered", state / "keeper.log"
    root.mkdir()
    subprocess.run(["tar", "-C", root, "-xf", engine_tarball()], check=True)
    words = ["setpriv", "--pdeathsig", "TERM", SCRIPTS / "enter-engine", root, ready, *visible]
    with log.open("wb") as out:
        keeper = subprocess.Popen(
            [str(word) for word in words],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    while not ready.exists():
        if keeper.poll() is not None:
            raise EngineFailed(f"The current engine's mount namespace cannot be made:\n{log.read_text()}")
        time.sleep(0.02)
    return keeper


def _configuration(engine: Engine, live_restore: bool) -> dict[str, Any]:
    state = engine.state
    configuration: dict[str, Any] = {
        "hosts": [engine.url],
        "data-root": str(engine.data),
        "exec-root": str(state / "exec"),
        "pidfile": str(state / "dockerd.pid"),
        "bridge": engine.network.bridge,
        "default-address-pools": [{"base": engine.network.pool, "size": 24}],
        "live-restore": live_restore,
        "shutdown-timeout": 5,
    }
    if engine.name == "current":
        configuration |= {"features": {"cdi": True}, "cdi-spec-dirs": [str(engine.cdi_dir)]}
    return configuration


def unmount_below(path: Path) -> None:
    """Unmount whatever is mounted at a path and below it."""
    mounted = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for target in reversed(mounted):
        if Path(target).is_relative_to(path):
            subprocess.run(["umount", "--lazy", target], check=False, capture_output=True)


def main(arguments: Sequence[str]) -> int:
    """Run one engine by hand until Ctrl-C or SIGTERM."""
    kinds = {"debian": debian_engine, "current": current_engine}
    if len(arguments) != 1 or arguments[0] not in kinds:
        print("usage: python -m tests.live.engines debian|current", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with (
        tempfile.TemporaryDirectory(prefix="gpulab-engine-") as state,
        kinds[arguments[0]](Path(state) / "engine") as engine,
    ):
        print(f"export DOCKER_HOST={engine.url}", flush=True)
        signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
