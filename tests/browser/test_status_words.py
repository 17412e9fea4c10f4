"""What the panel says, by its own module in a browser without a page."""

import base64

import pytest
from tests.images.userserver import LAB

pytestmark = pytest.mark.browser

WORDS = LAB / "labextension" / "static" / "words.js"
GIB = 2**30
LABEL = "Show or hide its panel."


@pytest.fixture(scope="module")
def call(chromium):
    """Call a function of the module: call("gib", 5)."""
    page = chromium.new_page()
    source = base64.b64encode(WORDS.read_bytes()).decode()
    module = f"data:text/javascript;base64,{source}"
    yield lambda name, *values: page.evaluate(
        "async ([module, name, values]) => (await import(module))[name](...values)",
        [module, name, list(values)],
    )
    page.close()


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (0, "0"),
        (0.04, "0"),
        (0.44, "0.4"),
        (3.0, "3"),
        (9.94, "9.9"),
        (9.96, "10"),
        (79.6, "80"),
        (1024.4, "1024"),
    ],
)
def test_sizes(call, size, words):
    assert call("gib", size * GIB) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "under 1 min"),
        (59.9, "under 1 min"),
        (60, "1 min"),
        (3599, "59 min"),
        (3600, "1 h"),
        (7830, "2 h 10"),
        (3900, "1 h 05"),
        (86400, "1 d"),
        (100_000, "1 d 3 h"),
    ],
)
def test_spans(call, seconds, words):
    assert call("span", seconds) == words


def test_ages(call):
    assert [call("age", seconds) for seconds in (0.4, 59, 61)] == ["0 s", "59 s", "1 min"]


def answer(lab=None, **more):
    return {
        "now": 1000,
        "lab": lab,
        "problem": None,
        "written_seconds_ago": 1,
        "measured_seconds_ago": 1,
        "memory": None,
        "notices": [],
        **more,
    }


def told(**more):
    return {"devices": [], "notices": [], "ends_at": None, "taken_at": 999, "max_age_seconds": 15, **more}


def device(load, used=GIB, total=2 * GIB):
    return {"utilisation": load, "memory_used_bytes": used, "memory_total_bytes": total}


@pytest.mark.parametrize(
    ("known", "text"),
    [
        (answer(), ""),
        (answer(memory={"used_bytes": GIB, "limit_bytes": None}), "Memory 1 GiB"),
        (answer(told(ends_at=1000)), "time is over"),
        (
            answer(told(ends_at=1060), memory={"used_bytes": GIB, "limit_bytes": 4 * GIB}),
            "Memory 1 of 4 GiB · 1 min left",
        ),
        (answer(told(devices=[device(0)])), "GPU 0 % · 1 of 2 GiB"),
        (answer(told(devices=[device(None)])), "GPU not measured · 1 of 2 GiB"),
        (answer(told(devices=[device(50, total=None)])), "GPU 50 % · 1 GiB"),
        (answer(told(devices=[device(50, used=None)])), "GPU 50 %"),
        (answer(told(devices=[device(50), device(None, used=None)])), "2 GPUs 50 % (1 measured)"),
        (answer(told(devices=[device(50)]), measured_seconds_ago=16), "GPU figures 16 s old"),
        (
            answer(told(devices=[device(None)], taken_at=None), measured_seconds_ago=None),
            "GPU not measured · 1 of 2 GiB",
        ),
    ],
)
def test_the_item(call, known, text):
    found = call("item", known)
    assert found["text"] == text
    assert found["label"].endswith(LABEL)


def test_the_item_warns_of_notices_and_of_old_figures(call):
    start = {"id": "s", "kind": "start", "words": "The home is full."}
    assert not call("item", answer(told()))["warns"]
    assert call("item", answer(notices=[start]))["warns"]
    both = call("item", answer(told(notices=[start]), notices=[start]))
    assert "2 notices." in both["label"]
    old = answer(told(devices=[device(1)]), measured_seconds_ago=100, written_seconds_ago=90)
    assert call("item", old)["warns"]
    assert call("stale", old) == "These figures are 1 min old: the lab's service is not heard from."


def test_a_course_is_a_line_with_gaps_and_dots(call):
    assert call("coursePath", [0, 100, None, 50, None, None, 200], 60, 10) == (
        "M0.0 10.0L10.0 0.0M30.0 5.0L30.0 5.0M60.0 0.0L60.0 0.0"
    )
    assert call("coursePath", [None, None], 60, 10) == ""


def test_a_course_in_words(call):
    assert call("courseWords", [None]) == "Load of the last 5 minutes: not measured"
    assert call("courseWords", [5.2, None, 70.8]) == "Load of the last 5 minutes: 5 to 71 %"
    assert call("courseWords", [0, 0.2]) == "Load of the last 5 minutes: 0 %"
