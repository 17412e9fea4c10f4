"""JupyterHub's configuration: all of it comes from the lab's state directory (GPULAB_STATE)."""

import os
import sys
from pathlib import Path

from gpulab_hub.compose import configure
from gpulab_hub.paths import DEFAULT_STATE, LabPaths
from gpulab_spawner.errors import LabError

c = get_config()  # noqa: F821  JupyterHub defines it

try:
    configure(c, LabPaths(Path(os.environ.get("GPULAB_STATE", DEFAULT_STATE)).absolute()))
except LabError as error:
    sys.exit(f"jupyterhub: {error}")
