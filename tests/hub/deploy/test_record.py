import dataclasses
import json

import pytest

from gpulab_hub.deploy import record as records
from gpulab_spawner.errors import ConfigError


def test_a_saved_record_is_read_back_and_readable_by_all(tmp_path, record):
    records.save(tmp_path, record)
    assert records.load(tmp_path) == record
    assert records.path_of(tmp_path).stat().st_mode & 0o777 == 0o644


def test_no_lab_is_told_apart_from_a_broken_one(tmp_path):
    assert records.load(tmp_path) is None
    with pytest.raises(ConfigError, match=r"there is no lab here"):
        records.require(tmp_path)
    records.path_of(tmp_path).write_text("{")
    with pytest.raises(ConfigError, match=r"cannot be read"):
        records.load(tmp_path)
    records.path_of(tmp_path).write_text("[]")
    with pytest.raises(ConfigError, match=r"cannot be read"):
        records.load(tmp_path)


def test_keys_of_a_newer_release_do_not_hide_that_it_is_newer(tmp_path, record):
    newer = {**dataclasses.asdict(record), "release": "9.0", "invented": True}
    records.path_of(tmp_path).write_text(json.dumps(newer))
    assert records.require(tmp_path).release == "9.0"


@pytest.mark.parametrize(
    ("listen", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000"),
        ("0.0.0.0", "http://127.0.0.1:8000"),
        ("::", "http://[::1]:8000"),
        ("2001:db8::7", "http://[2001:db8::7]:8000"),
    ],
)
def test_the_url_reaches_the_proxy_from_this_machine(record, listen, url):
    assert dataclasses.replace(record, listen=listen).url == url


def test_releases_compare_as_numbers():
    assert records.version("0.10.0") > records.version("0.9.9")
    assert records.version("0.1.dev0") < records.version("0.1.1")
