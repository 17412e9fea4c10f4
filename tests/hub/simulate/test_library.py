import re
import shutil
import subprocess

import pytest

from gpulab_hub.simulate import library
from gpulab_hub.simulate.library import CannotCompile, build


def test_the_library_is_compiled_once(cache):
    first = build(cache)
    assert first.name == "libnvidia-ml.so.1"
    before = first.stat().st_mtime_ns
    assert build(cache) == first
    assert first.stat().st_mtime_ns == before
    assert [p.name for p in cache.iterdir()] == [first.parent.name]


def test_another_source_makes_another_library(cache, tmp_path, monkeypatch):
    first = build(cache)
    header = library.c_header()
    monkeypatch.setattr(library, "c_header", lambda: header + "/* changed */\n")
    assert build(tmp_path).parent.name != first.parent.name


def test_the_compiler_has_nothing_to_warn_of(cache, tmp_path, monkeypatch):
    monkeypatch.setattr(library, "_FLAGS", (*library._FLAGS, "-Werror"))
    build(tmp_path)


def test_without_a_compiler_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(CannotCompile, match="apt-get install gcc"):
        build(tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_a_source_that_does_not_compile_is_named_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(library, "c_header", lambda: "#error no layout\n")
    with pytest.raises(CannotCompile, match="#error no layout"):
        build(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_it_runs_on_the_c_libraries_of_older_images(cache):
    # A container has its own C library: Debian 10 and RHEL 8 have 2.28.
    symbols = subprocess.run(["objdump", "-T", build(cache)], capture_output=True, text=True, check=True)
    versions = {tuple(map(int, v.split("."))) for v in re.findall(r"GLIBC_([\d.]+)", symbols.stdout)}
    assert max(versions) <= (2, 28)
