"""The `gpulab` command: a table of subcommands, each imported when it is called."""

from __future__ import annotations

from importlib import import_module
from typing import cast

import click

COMMANDS = {
    "agent": "gpulab_hub.commands.agent:agent",
    "audit": "gpulab_hub.commands.audit:audit",
    "db": "gpulab_hub.commands.db:db",
    "device": "gpulab_hub.commands.device:device",
    "devices": "gpulab_hub.commands.devices:devices",
    "doctor": "gpulab_hub.commands.doctor:doctor",
    "down": "gpulab_hub.commands.lab:down",
    "images": "gpulab_hub.commands.images:images",
    "lease": "gpulab_hub.commands.lease:lease",
    "leases": "gpulab_hub.commands.leases:leases",
    "maintenance": "gpulab_hub.commands.maintenance:maintenance",
    "quota": "gpulab_hub.commands.quota:quota",
    "service": "gpulab_hub.commands.service:service",
    "simulate": "gpulab_hub.commands.simulate:simulate",
    "status": "gpulab_hub.commands.lab:status",
    "usage": "gpulab_hub.commands.usage:usage",
    "user": "gpulab_hub.commands.user:user",
}


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, name = COMMANDS[cmd_name].split(":")
        return cast(click.Command, getattr(import_module(module), name))


@click.command(cls=_Lazy)
@click.version_option(package_name="gpulab")
def main() -> None:
    """Run and look after a GPU lab."""
