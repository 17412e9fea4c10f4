from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import TZPATH, ZoneInfo

import pytest

from gpulab_hub.settings import parse
from gpulab_hub.zone import machine_zone, site_zone, zone_name

SUMMER = datetime(2026, 7, 1, 12)
BERLIN = next(path for root in TZPATH if (path := Path(root) / "Europe/Berlin").exists())


def hours(zone):
    return SUMMER.replace(tzinfo=zone).utcoffset().total_seconds() / 3600


def test_the_settings_come_first(monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assert zone_name(site_zone(parse("time_zone: Europe/Berlin"))) == "Europe/Berlin"
    assert zone_name(site_zone(parse(""))) == "Asia/Tokyo"


def test_the_machines_link_names_its_zone(tmp_path):
    link = tmp_path / "localtime"
    link.symlink_to(BERLIN)
    zone = machine_zone(None, link)
    assert (zone_name(zone), hours(zone)) == ("Europe/Berlin", 2)


def test_a_copy_has_no_name_and_the_right_time(tmp_path):
    copy = tmp_path / "localtime"
    copy.write_bytes(BERLIN.read_bytes())
    zone = machine_zone("", copy)
    assert (zone_name(zone), hours(zone)) == ("the machine's time", 2)


@pytest.mark.parametrize("variable", ["Nowhere/Land", "../../etc/passwd", "CET-1CEST", None])
def test_what_names_no_zone_counts_for_nothing(tmp_path, variable):
    assert machine_zone(variable, tmp_path / "nothing") is UTC
    (tmp_path / "junk").write_bytes(b"junk")
    assert machine_zone(variable, tmp_path / "junk") is UTC
    assert zone_name(UTC) == "UTC"


def test_the_variable_may_begin_with_a_colon(tmp_path):
    assert machine_zone(":Europe/Berlin", tmp_path) == ZoneInfo("Europe/Berlin")
