"""What the GPUs page costs the service: CPU time of a GET, and of its streams a batch, and bytes a viewer.

    python -m tests.bench.streams [--viewers 50,200] [--gpus 64] [--batches 20]

The service is the real one (tests/fakes/service_pages.py) in this process; the hub that it asks and the
viewers are processes of their own. Readings of every held GPU change with each batch, one a second. What is
told is the CPU time of this process over the batches, less what it needs with no viewer.

Exits with 1 if a viewer costs more than MOST_MS a batch.
"""

import argparse
import asyncio
import http.client
import multiprocessing
import statistics
import sys
import tempfile
import time
from contextlib import contextmanager
from unittest import mock

import aiohttp
from tests.fakes import service_pages as fakes
from tests.fakes.service_pages import ServicePages, busy, machine
from tests.fakes.who_hub import WhoHub

MOST_MS = 1.0
"""CPU milliseconds that a viewer may cost a batch. One thread serves all streams, and a batch comes each
second: at this cost 200 viewers take a fifth of what it has. Measured was 0.15, more on a busy machine.
"""
GETS = 20


def hub(pipe, names):
    """Be the hub until told to end."""
    made = WhoHub()
    made.names |= set(names)
    pipe.send(made.api)
    pipe.recv()
    made.close()


def reader(pipe, port, user):
    """Get the GPUs page whenever told to, and say how many bytes it has."""
    headers = {"Authorization": f"token {user}"}
    while pipe.recv() != "end":
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("GET", "/services/gpulab/", headers=headers)
        answer = connection.getresponse()
        size = len(answer.read())
        assert answer.status == 200, answer.status
        connection.close()
        pipe.send(size)


def viewers(pipe, url, names):
    """Hold a stream for each name, and say how many bytes came since the last question."""
    got = [0]

    async def one(session, name):
        headers = {"Authorization": f"token {name}"}
        async with session.get(f"{url}/services/gpulab/events", headers=headers) as answer:
            assert answer.status == 200
            ready.release()
            async for piece in answer.content.iter_any():
                got[0] += len(piece)

    async def main():
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            tasks = [asyncio.create_task(one(session, name)) for name in names]
            for _ in names:
                await ready.acquire()
            pipe.send("ready")
            while (await asyncio.to_thread(pipe.recv)) != "end":
                pipe.send(got[0])
                got[0] = 0
            for task in tasks:
                task.cancel()

    ready = asyncio.Semaphore(0)
    asyncio.run(main())


@contextmanager
def standing(gpus, names):
    """Yield the service on a machine of which half the GPUs are held, by these people first."""
    asked, hub_end = multiprocessing.Pipe()
    who = multiprocessing.Process(target=hub, args=(hub_end, names))
    who.start()
    api = asked.recv()
    with (
        tempfile.TemporaryDirectory() as directory,
        mock.patch.object(fakes, "WhoHub", return_value=mock.Mock(api=api)),
        ServicePages(fakes.migrated(directory), machine(gpus)) as pages,
    ):
        for n in range(gpus // 2):
            pages.lab.open(names[n] if n < len(names) else f"user{n}", "gpu:1")
        pages.feed(busy(pages, time.time()))
        yield pages
    asked.send("end")
    who.join()


def measure(count, gpus, batches):
    """Return CPU milliseconds of each batch, and bytes a viewer and batch."""
    names = [f"viewer{n}" for n in range(count)]
    with standing(gpus, names) as pages:
        told, watch_end = multiprocessing.Pipe()
        watching = multiprocessing.Process(target=viewers, args=(watch_end, pages.url, names))
        watching.start()
        told.recv()
        time.sleep(2)
        told.send("count")
        told.recv()
        spent = []
        for _ in range(batches):
            readings = busy(pages, time.time())
            begin = time.process_time()
            pages.feed(readings)
            time.sleep(1)
            spent.append(1000 * (time.process_time() - begin))
        told.send("count")
        bytes_each = told.recv() / max(count, 1) / batches
        told.send("end")
        watching.join()
    return spent, bytes_each


def measure_page(gpus):
    """Return CPU milliseconds of each GET of the GPUs page, but for the first, and its bytes."""
    with standing(gpus, ["viewer0"]) as pages:
        told, read_end = multiprocessing.Pipe()
        reading = multiprocessing.Process(target=reader, args=(read_end, pages.port, "viewer0"))
        reading.start()
        spent = []
        for _ in range(GETS + 1):
            begin = time.process_time()
            told.send("get")
            size = told.recv()
            spent.append(1000 * (time.process_time() - begin))
        told.send("end")
        reading.join()
    return spent[1:], size


def too_dear(costs):
    """Return in words what costs too much, of the milliseconds a viewer and batch by number of viewers."""
    return [
        f"with {count} viewers each costs {each:.2f} ms a batch; {MOST_MS} ms is the most"
        for count, each in costs.items()
        if each > MOST_MS
    ]


def main(words):
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.streams")
    parser.add_argument("--viewers", default="50,200")
    parser.add_argument("--gpus", type=int, default=64)
    parser.add_argument("--batches", type=int, default=20)
    options = parser.parse_args(words)
    print(f"{options.gpus} GPUs, half of them held and busy")
    spent, size = measure_page(options.gpus)
    print(f"a GET of the GPUs page: {statistics.median(spent):.1f} ms CPU (median of {GETS}), {size:,} bytes")
    print(f"streams, {options.batches} batches, one a second:")
    print("viewers  CPU ms a batch (median)  less no viewer  ms a viewer  bytes a viewer and batch")
    bare, costs = 0.0, {}
    for count in (0, *map(int, options.viewers.split(","))):
        spent, size = measure(count, options.gpus, options.batches)
        median = statistics.median(spent)
        if count:
            costs[count] = (median - bare) / count
        else:
            bare = median
        each = costs.get(count, 0.0)
        print(f"{count:7}  {median:23.1f}  {median - bare:14.1f}  {each:11.3f}  {size:24.0f}")
    wrong = too_dear(costs)
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
