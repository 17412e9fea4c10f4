"""`gpulab service`: the process of the lab's pages and REST, and of the reconcile loop."""

from __future__ import annotations

import asyncio
import logging

import click

from gpulab_hub.commands import lab_command
from gpulab_hub.paths import LabPaths


@click.command()
@lab_command
def service(paths: LabPaths) -> None:
    """Serve /services/gpulab/ and keep ledger and containers together until told to stop.

    Usually run by the supervisor.
    """
    from gpulab_hub import compose, locks, settings
    from gpulab_hub.assembly import assemble_service
    from gpulab_hub.deploy import record as records
    from gpulab_hub.service import app
    from gpulab_hub.telemetry import inbox

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    record = records.require(paths.state)
    site = settings.load(paths.config)
    held = locks.hold(paths.run / "service.lock", "service")
    lab = assemble_service(paths, record, site, compose.facts_of(record, site))
    where = app.Where(
        port=record.service_port,
        hub_api=f"http://{compose.in_url(record.gateway)}:{record.hub_port}/hub/api",
        token=paths.service_token.read_text(encoding="ascii").strip(),
        readings=paths.readings,
        agents=inbox.owners(paths.snapshot.parent),
    )
    try:
        asyncio.run(app.serve(lab, where))
    finally:
        held.close()
