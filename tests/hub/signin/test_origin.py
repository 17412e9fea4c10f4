from types import SimpleNamespace

import pytest

from gpulab_hub.accounting.attempts import Place
from gpulab_hub.signin.origin import address_of, place_of, remember_browser


def request(claimed, peer):
    connection = SimpleNamespace(context=SimpleNamespace(_orig_remote_ip=peer))
    return SimpleNamespace(remote_ip=claimed, connection=connection)


@pytest.mark.parametrize("proxy", ["127.0.0.1", "::1", "127.8.0.1", "::ffff:127.0.0.1", ""])
def test_what_the_proxy_of_this_machine_says_is_believed(proxy):
    assert address_of(request("192.0.2.1", proxy)) == "192.0.2.1"


@pytest.mark.parametrize("peer", ["172.18.0.5", "2001:db8::5", "192.0.2.77"])
def test_what_anybody_else_says_is_not(peer):
    assert address_of(request("192.0.2.1", peer)) == peer


def test_tornado_still_keeps_the_peer_where_it_is_looked_for():
    from tornado.httpserver import _HTTPRequestContext

    stream = SimpleNamespace(socket=SimpleNamespace(family=2))
    context = _HTTPRequestContext(stream, ("172.18.0.5", 4711), "http")
    assert context._orig_remote_ip == "172.18.0.5"


class FakeHandler:
    """A handler whose signed cookies are kept in a dictionary."""

    hub = SimpleNamespace(base_url="/hub/")

    def __init__(self):
        self.request = request("192.0.2.1", "127.0.0.1")
        self.cookies = {}
        self.set_with = []

    def get_secure_cookie(self, name, max_age_days):
        return self.cookies.get(name)

    def _set_cookie(self, name, value, **options):
        self.cookies[name] = value.encode()
        self.set_with.append(options)


def test_a_browser_is_known_for_the_name_that_it_signed_in_as():
    handler = FakeHandler()
    assert place_of(handler, "ada") == Place("192.0.2.1")
    remember_browser(handler, "ada")
    known = place_of(handler, "ada")
    assert known.device
    assert place_of(handler, "li") == Place("192.0.2.1")
    remember_browser(handler, "ada")
    assert place_of(handler, "ada") == known
    assert len(handler.set_with) == 1
    assert handler.set_with[0]["path"] == "/hub/"
