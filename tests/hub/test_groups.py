"""What is known of the hub's groups, between the service and the hub's process."""

import os

import pytest

from gpulab_hub.groups import GroupsFile
from gpulab_hub.hub_api import HubDown


@pytest.fixture
def file(tmp_path):
    return GroupsFile(tmp_path / "groups.json")


def test_one_process_reads_what_another_wrote(file, tmp_path):
    other = GroupsFile(tmp_path / "groups.json")
    assert other.group_of("ada") is None
    file.write({"ada": ("vision", "admins"), "li": ()})
    assert (other.group_of("ada"), other.group_of("li"), other.group_of("mo")) == ("admins", None, None)
    file.write({"ada": ("vision",)})
    assert other.group_of("ada") == "vision"
    assert (tmp_path / "groups.json").stat().st_mode & 0o077 == 0


def test_a_hub_that_is_down_leaves_what_was_heard_before(file, caplog):
    file.renew(lambda: {"ada": ("vision",)})

    def down():
        raise HubDown("it answers 503")

    file.renew(down)
    assert file.group_of("ada") == "vision"
    assert "it answers 503" in caplog.text


def test_the_same_answer_writes_nothing(file, tmp_path):
    file.write({"ada": ("vision",)})
    os.utime(tmp_path / "groups.json", (1, 1))
    file.write({"ada": ("vision",)})
    assert (tmp_path / "groups.json").stat().st_mtime == 1


@pytest.mark.parametrize("text", ["[", "[1]", '{"ada": 4}'])
def test_a_broken_file_names_no_group(file, tmp_path, text, caplog):
    (tmp_path / "groups.json").write_text(text)
    assert file.group_of("ada") is None
    assert "cannot be read" in caplog.text
