import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpulab_spawner.calls import Calls


@pytest.fixture
def executor():
    with ThreadPoolExecutor(2) as threads:
        yield threads


async def test_a_function_returns_or_raises_what_it_does(executor):
    calls = Calls()
    assert await calls.run(executor, lambda a, b: a + b, 1, 2) == 3
    with pytest.raises(ZeroDivisionError):
        await calls.run(executor, lambda: 1 / 0)
    await calls.settle()


@pytest.mark.parametrize("outcome", [lambda: None, lambda: 1 / 0])
async def test_a_call_whose_wait_was_cancelled_is_waited_for(executor, outcome):
    calls, began, go_on, ended = Calls(), threading.Event(), threading.Event(), []

    def work():
        began.set()
        go_on.wait(10)
        ended.append(True)
        outcome()

    wait = asyncio.ensure_future(calls.run(executor, work))
    await asyncio.to_thread(began.wait)
    wait.cancel()
    with pytest.raises(asyncio.CancelledError):
        await wait
    settled = asyncio.ensure_future(calls.settle())
    await asyncio.sleep(0)
    assert not settled.done()
    go_on.set()
    await settled
    assert ended == [True]


async def test_a_call_that_somebody_waits_for_holds_nobody_else_up(executor):
    calls, go_on = Calls(), threading.Event()
    other = asyncio.ensure_future(calls.run(executor, go_on.wait, 10))
    await asyncio.sleep(0)
    await calls.settle()
    go_on.set()
    await other
