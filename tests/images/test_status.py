import json

import pytest

from gpulab_server.status import Lab, Memory, answer, notices, read_lab, read_memory

SAID = {"layout": 1, "written_at": 1000.0, "taken_at": 998.5, "devices": []}


@pytest.fixture
def file(tmp_path):
    return tmp_path / "status.json"


def test_what_the_lab_says_is_taken_over(file):
    file.write_text(json.dumps(SAID))
    assert read_lab(file) == Lab(SAID)


def test_a_lab_that_says_nothing_is_no_problem(file):
    assert read_lab(file) == Lab()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", '{"layout": 1, "x": "' + "y" * (1 << 20) + '"}', "\udcff"]
)
def test_a_broken_file_is_said_in_words(file, text):
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert read_lab(file) == Lab(problem="What the lab says cannot be read: it is broken.")


def test_a_file_of_another_release_is_said_in_words(file):
    file.write_text(json.dumps(SAID | {"layout": 2}))
    assert "of another release than this image" in read_lab(file).problem


def test_a_file_that_cannot_be_read_is_said_in_words(file):
    file.mkdir()
    assert read_lab(file).problem == "What the lab says cannot be read: Is a directory."


def cgroup(root, version, used, limit, cached):
    names = {
        2: ("memory.current", "memory.max", "memory.stat", "inactive_file"),
        1: (
            "memory/memory.usage_in_bytes",
            "memory/memory.limit_in_bytes",
            "memory/memory.stat",
            "total_inactive_file",
        ),
    }[version]
    for name, text in zip(names, (used, limit, f"anon 7\n{names[3]} {cached}"), strict=False):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(f"{text}\n")


@pytest.mark.parametrize("version", [1, 2])
def test_the_servers_memory_is_what_its_cgroup_holds_less_cached_files(tmp_path, version):
    cgroup(tmp_path, version, 5000, 9000, 1200)
    assert read_memory(tmp_path) == Memory(3800, 9000)


@pytest.mark.parametrize(("version", "none"), [(2, "max"), (1, str(2**63 - 4096))])
def test_no_limit_is_none(tmp_path, version, none):
    cgroup(tmp_path, version, 5000, none, 0)
    assert read_memory(tmp_path) == Memory(5000, None)


def test_memory_that_cannot_be_read_is_none(tmp_path):
    assert read_memory(tmp_path) is None
    cgroup(tmp_path, 2, "junk", 1, 1)
    assert read_memory(tmp_path) is None


def test_what_the_start_could_not_do_is_told_line_by_line():
    told = notices({"GPULAB_NOTICES": "One thing.\nAnother."})
    assert [(each["kind"], each["words"]) for each in told] == [
        ("start", "One thing."),
        ("start", "Another."),
    ]
    assert told[0]["id"] != told[1]["id"]
    assert notices({}) == []


def test_an_answer_says_how_old_its_figures_are():
    told = answer(Lab(SAID), Memory(1, None), [], 1003.04)
    assert told == {
        "now": 1003.04,
        "lab": SAID,
        "problem": None,
        "written_seconds_ago": 3.0,
        "measured_seconds_ago": 4.5,
        "memory": {"used_bytes": 1, "limit_bytes": None},
        "notices": [],
    }


def test_an_answer_without_figures_has_no_age():
    told = answer(Lab(problem="Why."), None, [], 1003)
    assert (told["lab"], told["problem"], told["memory"]) == (None, "Why.", None)
    assert told["written_seconds_ago"] is None
    assert answer(Lab(SAID | {"taken_at": None}), None, [], 5)["measured_seconds_ago"] is None


def test_a_clock_that_was_set_back_gives_no_negative_age():
    assert answer(Lab(SAID), None, [], 900)["written_seconds_ago"] == 0
