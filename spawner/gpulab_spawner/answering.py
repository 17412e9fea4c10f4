"""Waiting for a server's first HTTP answer.

The hub looks for it with a back-off of up to 5 s; looking at once and every 50 ms is what makes a fast start
fast. Each wait has a client of its own: tornado's shared one has ten places, which the hub also talks to its
proxy through, and ten servers that accept connections but do not answer would take them all.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from tornado.httpclient import AsyncHTTPClient, HTTPClientError

LOOK_SECONDS = 0.05
CHECK_SECONDS = 0.5


async def wait_for_answer(
    url: str, check: Callable[[], Awaitable[object]], clock: Callable[[], float] = time.monotonic
) -> None:
    """Wait until an HTTP server answers, with whatever status.

    Args:
        url: What is asked for.
        check: Raises once there is nothing to wait for any more; called every half second, by the clock: the
            address of a container that ended swallows connections, so that each look takes a second.
        clock: Seconds that never go back.
    """
    client = AsyncHTTPClient(force_instance=True)
    checked = clock()
    try:
        while not await _answers(client, url):
            if clock() - checked > CHECK_SECONDS:
                await check()
                checked = clock()
            await asyncio.sleep(LOOK_SECONDS)
    finally:
        client.close()


async def _answers(client: AsyncHTTPClient, url: str) -> bool:
    try:
        await client.fetch(url, connect_timeout=1, request_timeout=5, follow_redirects=False)
    except HTTPClientError as error:
        return bool(error.code != 599)  # 599 is tornado's own: no answer in time, or the connection closed
    except OSError:
        return False
    return True
