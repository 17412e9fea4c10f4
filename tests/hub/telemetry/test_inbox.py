import asyncio
import json
import logging
import os
import stat
import sys
import threading
from dataclasses import replace

import pytest

from gpulab_hub.agent.sender import UnixConnection
from gpulab_hub.telemetry import inbox
from gpulab_hub.telemetry.inbox import Inbox
from gpulab_spawner.telemetry.readings import Batch, GpuReading, Orders, dump, load_orders

BATCH = Batch("node", 1.0, 2.0, "boot", (GpuReading("GPU-a", temperature_celsius=40),))
ORDERS = Orders(release=("GPU-a",))


@pytest.fixture
async def served(tmp_path):
    """A started inbox: served(take, peers) -> its path."""
    made = []

    def serve(take, peers=()):
        path = tmp_path / "run" / "readings.sock"
        made.append(Inbox(path, take, peers))
        made[-1].start()
        return path

    yield serve
    for one in made:
        await one.stop()


async def ask(path, body, method="POST", address="/readings"):
    def post():
        connection = UnixConnection(path, 10)
        try:
            connection.request(method, address, body=body)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    return await asyncio.to_thread(post)


async def test_a_batch_is_taken_and_answered_with_the_orders(served):
    taken = []

    def take(batch):
        taken.append(batch)
        return ORDERS

    path = served(take)
    status, body = await ask(path, dump(BATCH))
    assert (status, load_orders(body)) == (200, ORDERS)
    assert taken == [BATCH]


def problem(body):
    error = json.loads(body)["error"]
    assert set(error) == {"code", "message", "next_step", "details"}
    return error["code"]


@pytest.mark.parametrize(
    ("body", "method", "address", "status", "code"),
    [
        (b"{", "POST", "/readings", 400, "readings_unreadable"),
        (dump(Batch("n", 1.0, 1.0, "b", layout=99)), "POST", "/readings", 400, "readings_unreadable"),
        (b"", "POST", "/", 404, "not_found"),
        (None, "GET", "/elsewhere", 404, "not_found"),
        (None, "GET", "/readings", 405, "method_not_allowed"),
    ],
)
async def test_what_it_does_not_understand_is_refused_in_the_one_shape(
    served, body, method, address, status, code
):
    path = served(lambda batch: ORDERS)
    answered, said = await ask(path, body, method, address)
    assert (answered, problem(said)) == (status, code)


async def test_a_fault_while_taking_is_the_services_and_tells_nothing_of_itself(served, caplog):
    def take(batch):
        raise RuntimeError("secret")

    path = served(take)
    status, body = await ask(path, dump(BATCH))
    assert (status, problem(body)) == (500, "internal")
    assert b"secret" not in body
    assert "Readings could not be taken" in caplog.text


async def test_who_is_not_the_agent_is_refused_and_logged_once(served, monkeypatch, caplog):
    caplog.set_level(logging.WARNING)
    taken = []
    path = served(taken.append)
    monkeypatch.setattr(inbox, "peer", lambda request: 4711)
    for _ in range(2):
        status, body = await ask(path, dump(BATCH))
        assert (status, problem(body)) == (403, "not_the_agent")
    assert taken == []
    assert [r.message for r in caplog.records] == ["Readings of uid 4711 are refused: it is not the agent"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
@pytest.mark.parametrize(("peers", "status"), [((), 403), ((65534,), 200)])
async def test_the_kernel_says_who_it_is(served, tmp_path, peers, status):
    # As another user: through a descriptor of the directory, since pytest's own are closed to others.
    path = served(lambda batch: ORDERS, peers)
    path.chmod(0o666)
    directory = os.open(path.parent, os.O_PATH)
    code = (
        "import os, sys\n"
        "from gpulab_hub.agent.sender import UnixConnection\n"
        "os.setgid(65534); os.setuid(65534)\n"
        f"c = UnixConnection('/proc/self/fd/{directory}/readings.sock', 10)\n"
        "c.request('POST', '/readings', body=sys.stdin.buffer.read())\n"
        "print(c.getresponse().status)\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdin=-1, stdout=-1, pass_fds=[directory]
    )
    said, _ = await process.communicate(dump(BATCH))
    os.close(directory)
    assert int(said) == status


@pytest.mark.parametrize(("peers", "mode"), [((), 0o600), ((65534,), 0o666)])
async def test_the_socket_is_open_to_no_more_than_need_it(served, peers, mode):
    path = served(lambda batch: ORDERS, peers)
    assert stat.S_IMODE(path.stat().st_mode) == mode


async def test_a_socket_of_an_earlier_service_is_replaced_and_none_stays_behind(tmp_path):
    path = tmp_path / "readings.sock"
    first = Inbox(path, lambda batch: ORDERS)
    first.start()
    second = Inbox(path, lambda batch: ORDERS)
    second.start()
    assert (await ask(path, dump(BATCH)))[0] == 200
    await first.stop()
    await second.stop()
    assert not path.exists()


async def test_a_batch_that_comes_again_is_answered_and_not_taken_again(served):
    taken = []

    def take(batch):
        taken.append(batch.uptime)
        return ORDERS

    path = served(take)
    for uptime in (2.0, 2.0, 3.0, 3.0):
        status, body = await ask(path, dump(replace(BATCH, uptime=uptime)))
        assert (status, load_orders(body)) == (200, ORDERS)
    assert taken == [2.0, 3.0]


async def test_a_batch_that_failed_is_taken_when_it_comes_again(served):
    answers = iter([RuntimeError("a fault"), ORDERS])

    def take(batch):
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    path = served(take)
    assert [(await ask(path, dump(BATCH)))[0] for _ in range(2)] == [500, 200]


async def test_what_nobody_waits_for_any_more_is_not_taken(served):
    taken, began, go = [], threading.Event(), threading.Event()

    def take(batch):
        taken.append(batch.uptime)
        began.set()
        assert go.wait(30)
        return ORDERS

    path = served(take)
    first = asyncio.create_task(ask(path, dump(BATCH)))
    await asyncio.to_thread(began.wait, 30)
    body = dump(replace(BATCH, uptime=3.0))
    _, writer = await asyncio.open_unix_connection(path)
    writer.write(b"POST /readings HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    last = asyncio.create_task(ask(path, dump(replace(BATCH, uptime=4.0))))
    go.set()
    assert [(await first)[0], (await last)[0]] == [200, 200]
    assert taken == [2.0, 4.0]


async def test_batches_are_taken_one_after_the_other(served):
    running, most = [], []

    def take(batch):
        running.append(batch)
        most.append(len(running))
        running.pop()
        return ORDERS

    path = served(take)
    await asyncio.gather(*(ask(path, dump(replace(BATCH, uptime=2.0 + n))) for n in range(3)))
    assert most == [1] * 3


def test_the_agent_is_who_owns_the_directory_of_the_snapshot(tmp_path):
    assert inbox.owners(tmp_path) == (os.geteuid(),)
    assert inbox.owners(tmp_path / "absent") == ()
