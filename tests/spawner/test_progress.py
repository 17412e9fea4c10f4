import asyncio

from gpulab_spawner.gate import Lease, Person
from gpulab_spawner.placement.devices import Device
from gpulab_spawner.progress import Progress, granted_words


def test_an_event_carries_the_seconds_since_the_start():
    now = iter([0.0, 100.0, 101.26])
    progress = Progress(lambda: next(now))
    assert progress.last == ""
    progress.begin()
    progress.tell(5, "Waiting for Docker")
    assert progress.last == "Waiting for Docker"
    assert progress._events == [{"progress": 5, "message": "Waiting for Docker", "elapsed": 1.3}]


async def test_every_reader_gets_every_event_whenever_it_comes():
    progress, heard = Progress(), {"first": [], "late": []}

    async def read(who):
        async for event in progress.events():
            heard[who].append(event["message"])
            if event["progress"] == 95:
                break

    first = asyncio.ensure_future(read("first"))
    await asyncio.sleep(0)
    progress.tell(5, "a")
    await asyncio.sleep(0)
    late = asyncio.ensure_future(read("late"))
    await asyncio.sleep(0)
    progress.tell(50, "b")
    progress.tell(95, "c")
    await asyncio.gather(first, late)
    assert heard == {"first": ["a", "b", "c"], "late": ["a", "b", "c"]}


def test_a_new_start_forgets_the_last_one():
    progress = Progress()
    progress.tell(95, "Jupyter answers")
    progress.begin()
    assert progress.last == ""


def test_what_was_granted_is_said_with_model_and_slice():
    ada = Person("p" * 32, "ada", 200001, "ada-1f2e3d")

    def words(*devices):
        return granted_words(Lease("1" * 32, "w", ada, "", "python", devices, 1, 0.0))

    assert words() == "Granted: no GPU"
    card = Device("GPU-a", "GPU-1f2e3d4c-5b6a", "GPU-a", "NVIDIA H100", minor=0)
    piece = Device("k", "MIG-5b6a7988-9a0b", "GPU-b", "NVIDIA H100", profile="1g.10gb", minor=0)
    unknown = Device("GPU-c", "GPU-c", "GPU-c", None, minor=0)
    assert words(card, piece, unknown) == (
        "Granted: NVIDIA H100 (GPU-1f2e3d4c), NVIDIA H100 1g.10gb (MIG-5b6a7988), GPU (GPU-c)"
    )
