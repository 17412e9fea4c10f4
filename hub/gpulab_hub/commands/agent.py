"""`gpulab agent`: the process that reads the GPUs of this node."""

from __future__ import annotations

import logging

import click

from gpulab_hub.agent import sampler
from gpulab_hub.commands import lab_command
from gpulab_hub.paths import LabPaths


@click.command()
@lab_command
def agent(paths: LabPaths) -> None:
    """Read this node's GPUs every second until told to stop.

    Usually run by the supervisor. Logs to standard error what changes: GPUs that appear, go or fall sick.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    sampler.run(paths)
