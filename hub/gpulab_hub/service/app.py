"""The service's application and its process."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import signal
from dataclasses import dataclass
from pathlib import Path

from tornado.httpserver import HTTPServer
from tornado.web import Application

from gpulab_hub.groups import RENEW_SECONDS
from gpulab_hub.hub_api import HubApi
from gpulab_hub.service import api, care_page, device_page, metrics, page, usage_page
from gpulab_hub.service.events import ServiceOAuth
from gpulab_hub.service.handlers import Callback, NotFound
from gpulab_hub.service.lab import ServiceLab
from gpulab_hub.service.loop import Loop
from gpulab_hub.service.recorder import Recorder
from gpulab_hub.status_files import keep_written
from gpulab_hub.telemetry.inbox import Inbox

log = logging.getLogger(__name__)

CLIENT = "service-gpulab"
ACCESS = "access:services!service=gpulab"
MOST_BODY = 64 * 1024


@dataclass(frozen=True, slots=True)
class Where:
    """Where the service and its hub are.

    Attributes:
        port: Port on loopback; the proxy routes /services/gpulab/ to it.
        hub_api: URL of the hub's API.
        token: The service's API token, which is its OAuth secret too.
        readings: Socket at which the agent's readings are taken, None for none.
        agents: Uids that the agent may have besides root and the service's own.
    """

    port: int
    hub_api: str
    token: str
    readings: Path | None = None
    agents: tuple[int, ...] = ()


def application(lab: ServiceLab, where: Where) -> Application:
    """Return the service's application."""
    auth = ServiceOAuth(
        api_token=where.token,
        api_url=where.hub_api,
        base_url=api.PREFIX,
        oauth_client_id=CLIENT,
        oauth_redirect_uri=f"{api.PREFIX}oauth_callback",
        access_scopes={ACCESS},
    )
    arguments = {"lab": lab, "auth": auth}
    return Application(
        [
            *api.routes(arguments),
            *care_page.routes(arguments),
            *page.routes(arguments),
            *device_page.routes(arguments),
            *usage_page.routes(arguments),
            *metrics.routes(arguments),
            (f"{api.PREFIX}oauth_callback", Callback, arguments),
        ],
        default_handler_class=NotFound,
        default_handler_args=arguments,
        # Cookies are signed with what only this service and the hub know, and survive a restart.
        cookie_secret=hashlib.sha256(b"cookies of the service\0" + where.token.encode()).digest(),
        log_function=_log_request,
    )


def _log_request(handler: object) -> None:
    """Log no request: the proxy and the hub do, and pages poll."""


async def _groups(lab: ServiceLab, where: Where) -> None:
    """Keep what is known of the hub's groups."""
    hub = HubApi(where.hub_api, where.token)
    while lab.groups is not None:
        await asyncio.to_thread(lab.groups.renew, hub.groups)
        await asyncio.sleep(RENEW_SECONDS)


async def serve(lab: ServiceLab, where: Where) -> None:
    """Serve until SIGTERM or SIGINT."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    server = HTTPServer(application(lab, where), max_body_size=MOST_BODY, max_buffer_size=2 * MOST_BODY)
    server.listen(where.port, "127.0.0.1")
    inbox = Inbox(where.readings, lab.take, peers=where.agents) if where.readings else None
    if inbox is not None:
        inbox.start()
    loops = [Loop(lab).run(), lab.streams.run(), care_page.probing(lab), _groups(lab, where)]
    if lab.status_files is not None:
        loops.append(keep_written(lab.status_files))
    tasks = [asyncio.create_task(each) for each in loops]
    recorder = Recorder(lab.history) if lab.history is not None else None
    recording = asyncio.create_task(recorder.run()) if recorder is not None else None
    log.info("The service listens on 127.0.0.1:%d", where.port)
    await ended.wait()
    server.stop()
    lab.streams.close()
    for task in tasks:
        task.cancel()
    if inbox is not None:
        await inbox.stop()
    await server.close_all_connections()
    if recorder is not None and recording is not None:
        # After whatever hands readings over has ended: what was taken is written for the last time.
        recorder.end()
        await recording
