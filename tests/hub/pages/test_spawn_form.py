from types import SimpleNamespace

import pytest

from gpulab_hub.pages.reading import SharedReading
from gpulab_hub.pages.spawn_form import spawn_form
from gpulab_hub.pages.spawn_page import LabNow
from gpulab_spawner.errors import LedgerUnavailable
from gpulab_spawner.placement.availability import Offer
from gpulab_spawner.profiles import Defaults, read_profiles


@pytest.mark.parametrize("text", ['<script>alert("x")</script>', "'\"><img src=x onerror=alert(1)>"])
async def test_nothing_reaches_the_page_unescaped(text):

    catalogue = read_profiles(
        [{"display_name": text, "slug": "x", "description": text, "gpu": ["none", "gpu:1"]}],
        Defaults(image="lab/base", memory_bytes=1 << 30),
    )
    offer = Offer(text, text, text, 1, 2, "taken", text)
    lab = LabNow({"x": (offer,)}, taken_at=0.0, problem=text)
    last = {"profile": text, "shape": text, "runtime": text}
    form = spawn_form(
        SharedReading(lambda: lab),
        catalogue,
        lambda user, server: last,
        lambda user, server: text,
        lambda: 1.0,
    )
    spawner = SimpleNamespace(name="train", user=SimpleNamespace(name=text, groups=[]))
    html = await form(spawner)
    assert "<script" not in html
    assert "<img" not in html
    assert "&lt;" in html


async def test_the_last_choice_is_asked_for_this_server_of_this_user():
    asked = []
    catalogue = read_profiles([], Defaults(image="lab/base", memory_bytes=1 << 30))
    form = spawn_form(SharedReading(LabNow), catalogue, lambda *who: asked.append(who), clock=lambda: 1.0)
    await form(SimpleNamespace(name="train", user=SimpleNamespace(name="ada", groups=[])))
    assert asked == [("ada", "train")]


async def test_an_end_that_came_over_its_owner_is_told_above_the_choices():
    catalogue = read_profiles([], Defaults(image="lab/base", memory_bytes=1 << 30))
    ended = "Your last server ended: out of memory at 14:02."
    form = spawn_form(
        SharedReading(LabNow), catalogue, lambda *who: None, lambda user, server: ended * (server == "train")
    )
    ada = SimpleNamespace(name="ada", groups=[])
    html = await form(SimpleNamespace(name="train", user=ada))
    assert html.index(ended) < html.index("<fieldset")
    assert "last server" not in await form(SimpleNamespace(name="", user=ada))


async def test_what_is_allowed_is_asked_for_this_user_in_their_groups():
    asked = []
    catalogue = read_profiles([], Defaults(image="lab/base", memory_bytes=1 << 30))
    form = spawn_form(
        SharedReading(LabNow), catalogue, lambda *who: None, allow=lambda *who: asked.append(who)
    )
    ada = SimpleNamespace(name="ada", groups=[SimpleNamespace(name="vision")])
    await form(SimpleNamespace(name="", user=ada))
    assert asked == [("ada", ("vision",))]


async def test_limits_that_cannot_be_read_leave_the_page_without_them():
    def fail(user, groups):
        raise LedgerUnavailable("The lab's database does not answer.")

    catalogue = read_profiles([], Defaults(image="lab/base", memory_bytes=1 << 30))
    form = spawn_form(SharedReading(LabNow), catalogue, lambda *who: None, allow=fail)
    html = await form(SimpleNamespace(name="", user=SimpleNamespace(name="ada", groups=[])))
    assert "data-costs" not in html
