import asyncio
from contextlib import asynccontextmanager, suppress

import pytest
from tornado.httpclient import AsyncHTTPClient

from gpulab_spawner import answering as answering_module
from gpulab_spawner.answering import CHECK_SECONDS, wait_for_answer


class Gone(Exception):
    """There is nothing to wait for any more."""


@asynccontextmanager
async def listening(answer):
    """Listen on loopback; `answer` gets each connection's writer. Yields the URL."""
    writers = []

    async def met(reader, writer):
        writers.append(writer)
        with suppress(asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            answer(writer)

    server = await asyncio.start_server(met, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/api"
    finally:
        server.close()
        for writer in writers:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


def answering(status):
    def answer(writer):
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\nLocation: /x\r\n\r\n".encode())
        writer.close()

    return answer


async def never():
    raise AssertionError("there is something to wait for")


async def gone():
    raise Gone


@pytest.mark.parametrize("status", ["200 OK", "302 Found", "403 Forbidden", "500 Oops"])
async def test_any_status_is_an_answer(status):
    async with listening(answering(status)) as url:
        await wait_for_answer(url, never)


async def test_a_closed_port_and_a_closed_connection_are_none():
    looks = []

    def close(writer):
        looks.append("closed")
        writer.close()

    async with listening(close) as url:
        with pytest.raises(Gone):
            await wait_for_answer(url, gone, iter([0, 0, CHECK_SECONDS, 2 * CHECK_SECONDS]).__next__)
    assert len(looks) == 3
    with pytest.raises(Gone):
        await wait_for_answer(url, gone)


async def test_an_address_that_swallows_each_look_does_not_hide_the_end(monkeypatch):
    clock, looks = [0.0], []

    async def swallowed(client, url):
        looks.append(url)
        clock[0] += 1  # the time-out of a connection that nobody refuses
        return False

    monkeypatch.setattr(answering_module, "_answers", swallowed)
    with pytest.raises(Gone):
        await wait_for_answer("http://192.0.2.1/api", gone, lambda: clock[0])
    assert len(looks) == 1


async def test_servers_that_never_answer_take_no_place_of_others():
    connected = asyncio.Semaphore(0)

    def silent(writer):
        connected.release()

    async with listening(silent) as slow, listening(answering("200 OK")) as quick:
        waits = [asyncio.ensure_future(wait_for_answer(slow, never)) for _ in range(12)]
        for _ in range(10):
            await connected.acquire()
        async with asyncio.timeout(4):  # a place of a shared client is free again after 5 s
            await AsyncHTTPClient().fetch(quick)
            await wait_for_answer(quick, never)
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
