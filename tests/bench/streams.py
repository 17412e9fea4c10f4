"""What the GPUs page's streams cost the service: CPU time a batch, and bytes a viewer.

    python -m tests.bench.streams [--viewers 0,50,200] [--gpus 64] [--batches 20]

The service is the real one (tests/fakes/service_pages.py) in this process; the hub that it asks and the
viewers are processes of their own. Readings of every held GPU change with each batch, one a second. What is
told is the CPU time of this process over the batches, less what it needs with no viewer.
"""

import argparse
import asyncio
import multiprocessing
import shutil
import statistics
import tempfile
import time
from unittest import mock

import aiohttp
from tests.fakes import service_pages as fakes
from tests.fakes.service_pages import ServicePages, busy, machine
from tests.fakes.who_hub import WhoHub


def hub(pipe, names):
    """Be the hub until told to end."""
    made = WhoHub()
    made.names |= set(names)
    pipe.send(made.api)
    pipe.recv()
    made.close()


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


def measure(count, gpus, batches):
    """Return CPU milliseconds of each batch, and bytes a viewer and batch."""
    names = [f"viewer{n}" for n in range(count)]
    directory = tempfile.mkdtemp()
    asked, hub_end = multiprocessing.Pipe()
    who = multiprocessing.Process(target=hub, args=(hub_end, names))
    who.start()
    api = asked.recv()
    with (
        mock.patch.object(fakes, "WhoHub", return_value=mock.Mock(api=api)),
        ServicePages(fakes.migrated(directory), machine(gpus)) as pages,
    ):
        for n in range(gpus // 2):
            pages.lab.open(names[n] if n < count else f"user{n}", "gpu:1")
        pages.feed(busy(pages, time.time()))
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
    asked.send("end")
    who.join()
    shutil.rmtree(directory)
    return spent, bytes_each


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--viewers", default="0,50,200")
    parser.add_argument("--gpus", type=int, default=64)
    parser.add_argument("--batches", type=int, default=20)
    options = parser.parse_args()
    print(f"{options.gpus} GPUs, half of them held and busy; {options.batches} batches, one a second")
    print("viewers  CPU ms a batch (median)  less no viewer  ms a viewer  bytes a viewer and batch")
    bare = None
    for count in map(int, options.viewers.split(",")):
        spent, size = measure(count, options.gpus, options.batches)
        median = statistics.median(spent)
        bare = median if bare is None else bare
        each = (median - bare) / count if count else 0.0
        print(f"{count:7}  {median:23.1f}  {median - bare:14.1f}  {each:11.3f}  {size:24.0f}")


if __name__ == "__main__":
    main()
