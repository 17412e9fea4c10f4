"""Fixtures: `hub`, a fake one on loopback; `clock`, which a test moves; `auth`, LabOAuth between the two."""

import asyncio
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jupyterhub.httpclient import JupyterHubHTTPClient
from tests.images.fakehub import ADA, FakeHub
from tornado.web import HTTPError

from gpulab_server import hubauth
from gpulab_server.hubauth import FRESH, GRACE, LabOAuth, Memory


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def hub():
    hub = FakeHub()
    yield hub
    if not hub.released.is_set():
        hub.close()


@pytest.fixture
async def auth(hub, clock):
    made = LabOAuth(clock=clock, api_url=hub.api, api_token="secret", oauth_client_id="jupyterhub-user-ada")
    yield made
    await JupyterHubHTTPClient.loop_instance().close()


def ask(auth, token="a", **options):
    return auth.user_for_token(token, session_id="s", sync=False, **options)


async def test_a_yes_is_used_for_ten_seconds_and_then_asked_again(hub, clock, auth):
    assert await ask(auth) == ADA
    clock.now += FRESH - 1
    assert await ask(auth) == ADA
    assert hub.asked == 1
    clock.now += 1
    assert await ask(auth) == ADA
    assert hub.asked == 2


async def test_a_no_counts_at_once_and_is_not_remembered(hub, clock, auth):
    hub.mood = "no"
    assert await ask(auth) is None
    hub.mood = "yes"
    assert await ask(auth) == ADA


async def test_access_that_was_taken_away_ends_within_ten_seconds(hub, clock, auth):
    await ask(auth)
    hub.mood = "no"
    clock.now += FRESH
    assert await ask(auth) is None


async def test_a_no_is_not_outlived_by_an_older_yes_when_the_hub_then_goes_away(hub, clock, auth):
    await ask(auth)
    hub.mood = "no"
    clock.now += FRESH
    await ask(auth)
    hub.mood = "broken"
    with pytest.raises(HTTPError) as caught:
        await ask(auth)
    assert caught.value.status_code == 503


@pytest.mark.parametrize("mood", ["broken", "busy", "junk", "hang"])
async def test_the_last_yes_stays_valid_for_fifteen_minutes_while_the_hub_is_silent(
    hub, clock, auth, mood, monkeypatch
):
    monkeypatch.setattr(hubauth, "TIMEOUT", 0.1)
    await ask(auth)
    hub.mood = mood
    clock.now += GRACE - 1
    assert await ask(auth) == ADA
    clock.now += 1
    with pytest.raises(HTTPError) as caught:
        await ask(auth)
    assert caught.value.status_code == 503
    assert "not affected" in caught.value.log_message


async def test_a_hub_that_refuses_connections_is_silent_too(hub, clock, auth):
    await ask(auth)
    hub.close()
    clock.now += FRESH
    assert await ask(auth) == ADA
    with pytest.raises(HTTPError):
        await ask(auth, "somebody else")


async def test_a_silent_hub_is_asked_every_ten_seconds_and_not_by_every_request(hub, clock, auth):
    await ask(auth)
    hub.mood = "broken"
    clock.now += FRESH
    for _ in range(5):
        assert await ask(auth) == ADA
    assert hub.asked == 2
    clock.now += FRESH
    hub.mood = "no"
    assert await ask(auth) is None


async def test_a_hub_that_does_not_understand_the_question_grants_nothing(hub, clock, auth):
    await ask(auth)
    hub.mood = "lost"
    clock.now += FRESH
    with pytest.raises(HTTPError) as caught:
        await ask(auth)
    assert caught.value.status_code == 500


async def test_requests_that_come_together_ask_once(hub, auth):
    assert await asyncio.gather(*(ask(auth) for _ in range(8))) == [ADA] * 8
    assert hub.asked == 1


async def test_a_request_that_is_given_up_does_not_take_the_answer_from_the_others(hub, auth):
    first, second = asyncio.ensure_future(ask(auth)), asyncio.ensure_future(ask(auth))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == ADA


async def test_people_are_not_mixed_up(hub, auth):
    assert await ask(auth, "a") == ADA
    assert await ask(auth, "stranger") is None
    assert hub.tokens == ["token a", "token stranger"]


async def test_without_the_memory_the_hub_is_asked_each_time(hub, auth):
    await ask(auth, use_cache=False)
    await ask(auth, use_cache=False)
    assert hub.asked == 2
    hub.mood = "broken"
    with pytest.raises(HTTPError):
        await ask(auth, use_cache=False)


def test_the_synchronous_call_works_from_a_program_without_a_loop(hub, clock):
    auth = LabOAuth(clock=clock, api_url=hub.api, api_token="secret", oauth_client_id="service")
    assert auth.user_for_token("a") == ADA
    auth._synchronize(_close_client)
    auth._pool.submit(auth._thread_loop.close).result()
    auth._pool.shutdown()


async def _close_client():
    await JupyterHubHTTPClient.loop_instance().close()


class Handler:
    def __init__(self):
        self.request = SimpleNamespace(headers={"Sec-Fetch-Mode": "websocket"})

    def get_argument(self, name, default=""):
        return "from-the-url"

    def get_secure_cookie(self, name):
        return None


async def test_a_token_in_a_url_is_no_token_not_even_on_a_websocket(auth):
    assert not auth.get_token(Handler())


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.sampled_from(["yes", "no", "silence"]), st.floats(0, 400)), max_size=12),
    st.floats(0, 2000),
)
def test_nobody_is_in_whose_last_answer_was_no_or_older_than_the_grace(events, later):
    memory, now, last_yes = Memory(), 0.0, None
    for kind, after in events:
        now += after
        if kind == "silence":
            memory.silence(now)
        else:
            memory.heard("k", ADA if kind == "yes" else None, now)
            last_yes = now if kind == "yes" else None
    now += later
    for held in (memory.recall("k", now), memory.last_yes("k", now)):
        if held is not None:
            assert last_yes is not None
            assert now - last_yes < GRACE


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(0, 1000), min_size=1, max_size=20))
def test_what_is_too_old_to_count_is_forgotten(steps):
    memory, now = Memory(), 0.0
    for i, step in enumerate(steps):
        now += step
        memory.heard(str(i), ADA, now)
        assert all(now - at < GRACE for _, at in memory._yes.values())
