from types import SimpleNamespace

import pytest

from gpulab_hub.pages.reading import SharedReading
from gpulab_hub.pages.spawn_form import last_options, spawn_form
from gpulab_hub.pages.spawn_page import LabNow
from gpulab_spawner.placement.availability import Offer
from gpulab_spawner.profiles import Defaults, read_profiles


@pytest.mark.parametrize(
    ("servers", "expected"),
    [
        ({"train": {"shape": "gpu:1"}, "": {"shape": "none"}}, {"shape": "gpu:1"}),
        ({"train": None, "": {"shape": "none"}}, {"shape": "none"}),
        ({"train": {}}, None),
        ({}, None),
    ],
)
def test_a_new_server_starts_from_what_the_default_one_had(servers, expected):
    stored = {name: SimpleNamespace(user_options=options) for name, options in servers.items()}
    assert last_options(SimpleNamespace(name="train", user=SimpleNamespace(orm_spawners=stored))) == expected


@pytest.mark.parametrize("text", ['<script>alert("x")</script>', "'\"><img src=x onerror=alert(1)>"])
async def test_nothing_reaches_the_page_unescaped(text):

    catalogue = read_profiles(
        [{"display_name": text, "slug": "x", "description": text, "gpu": ["none", "gpu:1"]}],
        Defaults(image="lab/base", memory_bytes=1 << 30),
    )
    offer = Offer(text, text, text, 1, 2, "taken", text)
    lab = LabNow({"x": (offer,)}, taken_at=0.0, problem=text)
    form = spawn_form(SharedReading(lambda: lab), catalogue, clock=lambda: 1.0)
    stored = {"": SimpleNamespace(user_options={"profile": text, "shape": text, "runtime": text})}
    spawner = SimpleNamespace(name="train", user=SimpleNamespace(orm_spawners=stored))
    html = await form(spawner)
    assert "<script" not in html
    assert "<img" not in html
    assert "&lt;" in html
