"""The command of configurable-http-proxy, installed below build/ at first use."""

import shutil
import subprocess
from pathlib import Path

HOME = Path(__file__).parents[2] / "build" / "test-proxy"


def proxy_command():
    """Return the command as a list."""
    found = shutil.which("configurable-http-proxy")
    if found:
        return [found]
    command = HOME / "node_modules" / ".bin" / "configurable-http-proxy"
    if not command.exists():
        npm = shutil.which("npm")
        if npm is None:
            raise RuntimeError("this test needs npm, or configurable-http-proxy on PATH")
        HOME.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            [npm, "install", "--no-audit", "--no-fund", "--prefix", str(HOME), "configurable-http-proxy@5"],
            check=True,
            capture_output=True,
        )
    return [str(command)]
