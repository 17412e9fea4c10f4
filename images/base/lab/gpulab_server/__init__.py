"""What runs inside a lab image: the entry of the container and the user's Jupyter server.

It is copied into images, so it imports nothing of the lab's own packages. The lab's service imports
`gpulab_server.hubauth` from it, which is why the lab's distribution carries it too.
"""

from __future__ import annotations

from typing import Any


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    """Tell Jupyter Server which class this package's extension is."""
    from gpulab_server.server import LabServer

    return [{"module": "gpulab_server", "app": LabServer}]
