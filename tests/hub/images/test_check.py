import pytest
from tests.hub.images.fakeengine import FakeEngine

from gpulab_hub.images.check import check, judge
from gpulab_spawner.errors import ImageMissing

GOOD = {
    "bash": "/usr/bin/bash",
    "login": "ready",
    "tar": "/usr/bin/tar",
    "gzip": "/usr/bin/gzip",
    "curl": "/usr/bin/curl",
    "wget": "",
    "ps": "/usr/bin/ps",
    "sshd": "/usr/sbin/sshd",
    "glibc": "glibc 2.36",
    "stdcpp": "/usr/lib/x86_64-linux-gnu/libstdc++.so.6",
    "hub": "6.1.3",
    "gpulab-start": "/opt/lab/bin/gpulab-start",
    "home": "writable",
    "tmp": "runs",
}
CONFIG = {"User": "1000:1000", "Env": ["PATH=/x"], "Volumes": None}


def wrong(probe=None, config=None):
    """Return the points that are not well, by name, for a good image with something changed."""
    found = judge(GOOD | (probe or {}), CONFIG | (config or {}), "6.1.1")
    return {finding.point: finding for finding in found if finding.level != "ok"}


def test_a_good_image_has_no_finding():
    assert wrong() == {}


@pytest.mark.parametrize(
    ("probe", "point", "says", "step"),
    [
        ({"bash": ""}, "bash", "is missing", "Install bash"),
        ({"login": ""}, "bash", "does not start as a login shell", "Install bash"),
        ({"tar": ""}, "tar", "is missing", "Install tar"),
        ({"gzip": ""}, "gzip", "is missing", "Install gzip"),
        ({"curl": ""}, "download", "neither curl nor wget", "Install curl"),
        ({"ps": ""}, "ps", "is missing", "Install procps"),
        ({"sshd": ""}, "sshd", "is missing", "Install openssh-server"),
        ({"glibc": ""}, "glibc", "is not glibc", "Debian or Ubuntu"),
        ({"glibc": "glibc 2.27"}, "glibc", "older than 2.28", "newer base"),
        ({"stdcpp": ""}, "stdcpp", "is missing", "Install libstdc++6"),
        ({"hub": ""}, "jupyterhub", "missing or does not start", "Install jupyterhub 6.1.1"),
        ({"hub": "Traceback"}, "jupyterhub", "missing or does not start", "Install jupyterhub 6.1.1"),
        ({"hub": "6.0.9"}, "jupyterhub", "the image has 6.0.9, the hub is 6.1.1", "Install jupyterhub 6.1.1"),
        ({"home": ""}, "home", "not so", "/home/lab"),
        ({"tmp": ""}, "tmp", "not so", "1777"),
    ],
)
def test_what_is_wrong_inside_is_named_with_its_next_step(probe, point, says, step):
    finding = wrong(probe)[point]
    assert finding.level == "fault"
    assert says in finding.says
    assert step in finding.next_step


def test_wget_does_as_well_as_curl():
    assert wrong({"curl": "", "wget": "/usr/bin/wget"}) == {}


def test_an_image_that_starts_the_stock_way_is_usable():
    assert wrong({"gpulab-start": ""})["start"].level == "warning"


@pytest.mark.parametrize(
    ("config", "point", "says"),
    [
        ({"User": ""}, "user", "runs as root"),
        ({"User": "0:0"}, "user", "runs as root"),
        ({"User": "root"}, "user", "runs as root"),
        ({"Env": ["LD_PRELOAD=/x.so"]}, "preload", "LD_PRELOAD is set"),
        ({"Volumes": {"/data": {}, "/home/lab": {}}}, "volumes", "what is written to /data is lost"),
        ({"Volumes": {"/home/labour": {}}}, "volumes", "/home/labour"),
    ],
)
def test_what_is_wrong_with_the_images_settings_is_named(config, point, says):
    finding = wrong(config=config)[point]
    assert finding.level == "fault"
    assert says in finding.says


def test_volumes_in_the_home_are_mounted_over_and_so_are_well():
    assert wrong(config={"Volumes": {"/home/lab/.cache": {}, "/workspace": {}}, "Env": None}) == {}


def test_an_image_that_says_nothing_at_all_is_all_faults():
    found = judge({}, {}, "6.1.1")
    faults = {finding.point for finding in found if finding.level == "fault"}
    assert faults >= {"bash", "jupyterhub", "home", "user"}
    assert all(finding.next_step for finding in found if finding.level != "ok")


def test_an_image_that_is_not_there_is_refused():
    with pytest.raises(ImageMissing, match="There is no image x on this engine"):
        check(FakeEngine(), "x", "6.1.1")
