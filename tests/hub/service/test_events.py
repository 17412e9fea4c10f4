"""The event streams: what changed, to whom what may be known; slow, revoked and too many readers."""

import asyncio
import os
import signal
from contextlib import suppress
from dataclasses import replace

import aiohttp
from tests.fakes.lab import NOON, machine
from tests.fakes.service_pages import cookie
from tests.hub.telemetry.readings import batch
from tornado.testing import bind_unused_port

from gpulab_hub.admission import View
from gpulab_hub.service import app, events
from gpulab_hub.service import streams as module
from gpulab_hub.service.api import API, PREFIX
from gpulab_hub.service.board import Source, board
from gpulab_hub.service.streams import MOST_OF_ONE
from gpulab_hub.visible import Holders, Privacy, Viewer
from gpulab_hub.withheld import Survey
from gpulab_spawner.errors import LedgerUnavailable
from gpulab_spawner.telemetry.readings import DeviceReading, ProcessReading

PAGE = f"{PREFIX}events"


async def test_a_change_comes_as_that_change_alone(service, reader, live):
    live(GPU_0=10.0, GPU_1=0.0)
    stream = await reader(PAGE, "ada")
    first = await stream.next()
    assert first["cells"]["g0.use"] == "10 %"
    assert first["cells"]["g1.use"] == "0 %"
    live(GPU_0=55.0, GPU_1=0.0)
    second = await stream.next()
    assert second["layout"] == first["layout"]
    assert second["cells"] == {"g0.use": "55 %"}
    assert second["holders"] == {}


async def test_who_holds_what_is_each_viewers_own_and_decided_for_each_event(service, reader, live, world):
    live(GPU_0=1.0)
    ada, li, root = [await reader(PAGE, user) for user in ("ada", "li", "root")]
    for stream in (ada, li, root):
        assert (await stream.next())["holders"] == {}
    world.up("ada", server="train")
    live(GPU_0=2.0)
    words = [(await stream.next())["holders"]["d0.who"] for stream in (ada, li, root)]
    assert words == ["you, train", "ada, train", "ada, train"]
    change_privacy(service, Privacy(Holders.GROUP, {"ada": "vision"}.get))
    live(GPU_0=3.0)
    assert (await li.next())["holders"]["d0.who"] == "group vision"
    assert "holders" in (await ada.next())
    change_privacy(service, Privacy(Holders.IN_USE))
    live(GPU_0=4.0)
    assert (await li.next())["holders"]["d0.who"] == "in use"
    assert (await root.next())["holders"] == {}


def change_privacy(service, privacy):
    admission = service.lab.admission
    admission._around = replace(admission._around, privacy=privacy)


async def test_a_program_gets_readings_and_no_process_of_others(service, reader, live, world):
    _, container = world.up("ada")
    train = ProcessReading(7, "train", container.id, 2**30, 5.0)
    live(GPU_0=DeviceReading("GPU-0", "GPU-0", 7.0, processes=(train,)))
    for user, names in {"ada": ["train"], "li": [], "root": ["train"]}.items():
        (device,) = (await (await reader(f"{API}events", user)).next())["devices"]
        assert (device["device"], device["utilisation"]) == ("GPU-0", 7.0)
        assert [process["name"] for process in device["processes"]] == names, user


async def test_without_new_readings_it_says_that_it_is_there(service, reader, live, monkeypatch):
    monkeypatch.setattr(module, "HEARTBEAT_SECONDS", 0.05)
    monkeypatch.setattr(module, "QUIET_SECONDS", 60)
    live(GPU_0=7.0)
    stream = await reader(PAGE, "ada")
    await stream.next()
    assert await stream.next() == "here"


async def test_a_stream_ends_when_the_hub_takes_the_right_away(service, reader, live, monkeypatch):
    monkeypatch.setattr(module, "RECHECK_SECONDS", 0.02)
    live(GPU_0=7.0)
    stream = await reader(PAGE, "ada")
    await stream.next()
    service.hub.revoked.add("ada")
    await stream.end()
    assert len(service.lab.streams) == 0


async def test_whoever_cannot_be_asked_about_is_cut_off(service, reader, live, monkeypatch):
    monkeypatch.setattr(module, "RECHECK_SECONDS", 0.02)
    live(GPU_0=7.0)
    stream = await reader(PAGE, "ada")
    await stream.next()

    def silent(*_, **__):
        raise LedgerUnavailable("The lab's database does not answer.")

    monkeypatch.setattr(type(service.lab), "viewer", silent)
    await stream.end()
    assert len(service.lab.streams) == 0


def test_the_right_is_asked_for_again_in_time_to_end_within_ten_seconds():
    assert module.RECHECK_SECONDS + 1 < 10


async def test_a_silent_hub_ends_no_stream(service, reader, live, monkeypatch):
    monkeypatch.setattr(module, "RECHECK_SECONDS", 0.02)
    live(GPU_0=7.0)
    stream = await reader(PAGE, "ada")
    await stream.next()
    service.hub.down = True
    asked = service.hub.asked
    while service.hub.asked < asked + 3:
        await asyncio.sleep(0)
    live(GPU_0=8.0)
    assert (await stream.next())["cells"]["g0.use"] == "8 %"


async def test_who_is_no_admin_any_more_is_told_as_others_are(service, reader, live, world, monkeypatch):
    monkeypatch.setattr(module, "RECHECK_SECONDS", 0.02)
    change_privacy(service, Privacy(Holders.IN_USE))
    world.up("ada", server="train")
    live(GPU_0=1.0)
    stream = await reader(PAGE, "root")
    assert (await stream.next())["holders"]["d0.who"] == "ada, train"
    service.hub.admins.clear()
    while (found := await told(stream, live))["holders"].get("d0.who") is None:
        pass
    assert found["holders"]["d0.who"] == "in use"


async def told(stream, live):
    live(GPU_0=1.0)
    return await stream.next()


async def test_so_many_streams_of_one_user_and_no_more(service, reader, live):
    live(GPU_0=7.0)
    for _ in range(MOST_OF_ONE):
        await (await reader(PAGE, "ada")).next()
    refused = await service.ask("GET", PAGE, "ada")
    assert (refused.status, refused.json["error"]["code"]) == (429, "too_many_streams")
    await (await reader(PAGE, "li")).next()


async def test_the_end_of_the_service_ends_streams_at_once(service, reader, live):
    live(GPU_0=7.0)
    stream = await reader(PAGE, "ada")
    await stream.next()
    service.lab.streams.close()
    await stream.end()


async def test_sigterm_ends_the_service_and_its_streams(service, reader, world):
    socket, port = bind_unused_port()
    socket.close()
    serving = asyncio.create_task(app.serve(service.lab, app.Where(port, service.hub.api, "t" * 32)))
    service.url = f"http://127.0.0.1:{port}"
    stream = None
    while stream is None:
        with suppress(aiohttp.ClientConnectionError):
            stream = await reader(PAGE, "ada")
    await stream.next()
    os.kill(os.getpid(), signal.SIGTERM)
    await stream.end()
    async with asyncio.timeout(10):
        await serving


async def test_nobody_looks_while_nobody_reads(service, reader, live, monkeypatch):
    looks = []
    real = service.lab.streams._look
    service.lab.streams._look = lambda: looks.append(1) or real()
    live(GPU_0=7.0)
    stream = await reader(PAGE, "ada")
    await stream.next()
    assert len(looks) == 1


async def test_a_cookie_without_the_pages_token_opens_no_stream_for_another_site(service, reader, live):
    mine = f"service-gpulab={cookie('ada')}"
    other = {"Cookie": mine, "Sec-Fetch-Mode": "cors", "User-Agent": "a browser"}
    assert (await service.ask("GET", PAGE, None, None, **other)).status == 401
    page = await service.ask("GET", PREFIX, None, None, **{**other, "Sec-Fetch-Mode": "navigate"})
    address = page.body.decode().split('data-events="')[1].split('"')[0]
    set_by_page = [c.split(";")[0] for c in page.headers.get_list("Set-Cookie")]
    live(GPU_0=7.0)
    stream = await reader(address, **{**other, "Cookie": "; ".join([mine, *set_by_page])})
    assert "cells" in await stream.next()


# A reader that is slow


def a_tick(number, before=None, **devices):
    view = View(Survey.of(machine(2)), {}, {}, NOON + number)
    found = board(Source(view, batch(NOON + number, **devices)), lambda key: "", 15.0)
    return module.tick(number, found, before.board if before else None, Privacy())


async def test_who_falls_behind_gets_the_whole_once_and_no_queue():
    ada = Viewer("ada")
    ticks = [a_tick(1, **{"GPU-0": 1.0})]
    for number in range(2, 6):
        ticks.append(a_tick(number, ticks[-1], **{"GPU-0": float(number)}))
    stream = module.Stream(ada, module.PageFeed().render, None, lambda: None)
    stream.offer(ticks[0])
    assert b'"g1.use"' in await stream.take()
    stream.offer(ticks[1])
    assert b'"cells":{"g0.use":"2 %"}' in await stream.take()
    stream.offer(ticks[2])
    stream.offer(ticks[3])
    stream.offer(ticks[4])
    text = await stream.take()
    assert b'"g0.use":"5 %"' in text
    assert b'"g1.use"' in text
    assert stream._newest is None


async def test_a_reader_that_takes_nothing_is_cut_off(service, reader, live, monkeypatch):
    monkeypatch.setattr(events, "SLOWEST_SECONDS", 0.05)

    async def never(self, *arguments):
        await asyncio.Event().wait()

    live(GPU_0=7.0)
    stream = await reader(PAGE, "ada")
    await stream.next()
    monkeypatch.setattr(events.EventsHandler, "flush", never)
    live(GPU_0=8.0)
    await stream.end()
    assert len(service.lab.streams) == 0
