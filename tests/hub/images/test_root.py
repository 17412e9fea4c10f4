import io
from pathlib import Path

import pytest

from gpulab_hub.images import root
from gpulab_hub.images.failures import BuildFailed
from gpulab_hub.images.root import choose_suite, ensure_root, package_sources

DEB822 = """Types: deb
# a comment
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main

Types: deb
Enabled: no
URIs: http://off.example/debian
Suites: bookworm
Components: main

Types: deb-src
URIs: http://source.example/debian
Suites: bookworm
Components: main
"""
ONE_LINE = """# deb http://off.example/debian bookworm main
deb [arch=amd64 signed-by=/x] http://one.example/debian bookworm main non-free
deb http://user:secret@b.example/debian bookworm main
deb http://docker.example/debian bookworm stable
deb http://old.example/debian bullseye main
deb
"""


@pytest.mark.parametrize(
    ("os_release", "suite"),
    [
        ("ID=debian\nVERSION_CODENAME=bookworm\n", ("debian", "bookworm")),
        ("ID=debian\nVERSION_CODENAME=trixie\n", ("debian", "trixie")),
        ("ID=debian\nVERSION_CODENAME=bullseye\n", ("debian", "bookworm")),
        ('ID=ubuntu\nVERSION_CODENAME="noble"\n', ("ubuntu", "noble")),
        ("ID=ubuntu\nVERSION_CODENAME=jammy\n", ("ubuntu", "noble")),
        ('ID="rocky"\n', ("debian", "bookworm")),
        ("", ("debian", "bookworm")),
    ],
)
def test_the_suite_is_the_hosts_where_it_has_the_python_that_we_need(os_release, suite):
    assert choose_suite(os_release) == suite


def test_the_hosts_own_sources_of_the_suite_are_taken_over():
    assert package_sources({"debian.sources": DEB822, "sources.list": ONE_LINE}, "bookworm") == [
        "deb http://mirror.example/debian bookworm main",
        "deb http://mirror.example/debian bookworm-updates main",
        "deb http://mirror.example/debian-security bookworm-security main",
        "deb http://one.example/debian bookworm main",
    ]


def test_a_host_of_another_suite_gives_none():
    assert package_sources({"debian.sources": DEB822}, "trixie") == []


class Engine:
    """Takes imports."""

    def __init__(self):
        self.imported = []
        self.api = self

    def import_image_from_file(self, filename, repository, tag):
        self.imported.append((Path(filename).read_bytes(), f"{repository}:{tag}"))


@pytest.fixture
def bookworm(monkeypatch, tmp_path):
    """Be on a host that is neither Debian nor Ubuntu."""
    (tmp_path / "os-release").write_text("ID=rocky\n")
    monkeypatch.setattr(root, "OS_RELEASE", tmp_path / "os-release")


def test_one_that_was_made_before_is_used_again(tmp_path, bookworm):
    (tmp_path / "root-bookworm.tar").write_bytes(b"root")
    engine, said = Engine(), []
    assert ensure_root(engine, tmp_path, said.append) == "gpulab/root:bookworm"
    assert engine.imported == [(b"root", "gpulab/root:bookworm")]
    assert said == []


def test_without_debootstrap_the_next_step_is_named(tmp_path, bookworm, monkeypatch):
    monkeypatch.setattr(root.shutil, "which", lambda *_, **__: None)
    with pytest.raises(BuildFailed, match="apt-get install debootstrap"):
        ensure_root(Engine(), tmp_path, io.StringIO().write)


def test_somebody_who_is_not_root_is_told(tmp_path, bookworm, monkeypatch):
    monkeypatch.setattr(root.shutil, "which", lambda *_, **__: "/usr/sbin/debootstrap")
    monkeypatch.setattr(root.os, "geteuid", lambda: 1000)
    with pytest.raises(BuildFailed, match="only root can make one"):
        ensure_root(Engine(), tmp_path, io.StringIO().write)


def test_a_debootstrap_that_fails_leaves_nothing_and_shows_its_last_lines(tmp_path, bookworm, monkeypatch):
    program = tmp_path / "debootstrap"
    program.write_text("#!/bin/sh\nfor i in $(seq 30); do echo line $i; done\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(root.shutil, "which", lambda *_, **__: str(program))
    monkeypatch.setattr(root.os, "geteuid", lambda: 0)
    cache = tmp_path / "cache"
    with pytest.raises(BuildFailed) as caught:
        ensure_root(Engine(), cache, io.StringIO().write)
    assert "line 30" in caught.value.message
    assert "line 10\n" not in caught.value.message
    assert list(cache.iterdir()) == []
