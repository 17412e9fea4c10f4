import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab_hub.accounting.attempts import ADDRESS, PAIR, Limit, Place, WrongTries, network, spoken

HOME = Place("192.0.2.1")
AWAY = Place("198.51.100.7")


def fail(tries, name, place, times, now=0.0):
    for _ in range(times):
        assert tries.wait(name, place, now) == 0
        tries.wrong(name, place, now)


def test_ten_wrong_ones_are_looked_at_and_the_eleventh_waits_two_minutes():
    tries = WrongTries()
    fail(tries, "ada", HOME, PAIR.burst)
    assert tries.wait("ada", HOME, 0) == pytest.approx(PAIR.every)
    assert tries.wait("ada", HOME, PAIR.every) == 0
    tries.wrong("ada", HOME, PAIR.every)
    assert tries.wait("ada", HOME, PAIR.every) == pytest.approx(PAIR.every)


def test_a_name_under_attack_is_not_locked_for_its_owner():
    tries = WrongTries()
    for host in range(200):
        fail(tries, "ada", Place(f"203.0.113.{host}"), PAIR.burst)
    assert tries.wait("ada", HOME, 0) == 0


def test_a_known_browser_passes_where_its_address_spent_everything():
    tries = WrongTries()
    for number in range(ADDRESS.burst // PAIR.burst):
        fail(tries, "ada" if not number else f"guess{number}", HOME, PAIR.burst)
    assert tries.wait("ada", HOME, 0) > 0
    assert tries.wait("li", HOME, 0) > 0
    known = Place(HOME.address, device="a1b2")
    assert tries.wait("ada", known, 0) == 0
    fail(tries, "ada", known, PAIR.burst)
    assert tries.wait("ada", known, 0) > 0


def test_many_names_from_one_address_are_limited():
    tries = WrongTries()
    for number in range(ADDRESS.burst):
        fail(tries, f"guess{number}", HOME, 1)
    assert tries.wait("another", HOME, 0) == pytest.approx(ADDRESS.every)
    assert tries.wait("another", AWAY, 0) == 0


def test_sixty_who_each_slip_twice_pass_from_one_address_in_two_minutes():
    tries = WrongTries()
    for number in range(60):
        now = number * 2.0
        fail(tries, f"student{number}", HOME, 2, now)
        assert tries.wait(f"student{number}", HOME, now) == 0
        tries.right(f"student{number}", HOME)


def test_a_right_password_forgets_the_slips_of_its_name_only():
    tries = WrongTries()
    fail(tries, "ada", HOME, 9)
    fail(tries, "li", HOME, 10)
    tries.right("ada", HOME)
    fail(tries, "ada", HOME, 10)
    assert tries.wait("li", HOME, 0) > 0


def test_memory_is_bounded_whatever_is_sent():
    tries = WrongTries(most=100)
    for number in range(1000):
        tries.wrong("x" * number, Place(f"2001:db8:{number:x}::1"), float(number))
    assert len(tries) == 100


@pytest.mark.parametrize(
    ("address", "part"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("a socket", "a socket"),
    ],
)
def test_the_part_of_an_address_that_counts(address, part):
    assert network(address) == part


def test_two_hosts_of_one_ipv6_network_share_their_tries():
    tries = WrongTries()
    fail(tries, "ada", Place("2001:db8:1:2::a"), PAIR.burst)
    assert tries.wait("ada", Place("2001:db8:1:2::b"), 0) > 0
    assert tries.wait("ada", Place("2001:db8:1:3::b"), 0) == 0


@given(st.lists(st.floats(0, 300), max_size=60), st.integers(1, 20), st.floats(1, 200))
def test_a_limit_never_lets_more_through_than_it_says(steps, burst, every):
    limit, now, full_at, passed = Limit(burst, every), 0.0, 0.0, 0
    for step in steps:
        now += step
        if limit.wait(full_at, now) == 0:
            full_at = limit.charge(full_at, now)
            passed += 1
        else:
            assert limit.wait(full_at, now + limit.wait(full_at, now) + 1e-6) == 0
    assert passed <= burst + now / every + 1e-6


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.2, "1 second"),
        (1, "1 second"),
        (11.1, "12 seconds"),
        (60, "1 minute"),
        (60.5, "2 minutes"),
        (119, "2 minutes"),
    ],
)
def test_a_wait_in_words(seconds, words):
    assert spoken(seconds) == words
