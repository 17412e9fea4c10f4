import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.fakes.docker_engine import AnswersServerError

from gpulab_spawner import storage as storage_module
from gpulab_spawner.container import Site
from gpulab_spawner.errors import EngineUnavailable, HostDiskShort, StorageUnavailable
from gpulab_spawner.gate import Lease, Person
from gpulab_spawner.storage import Storage

pytestmark = pytest.mark.skipif(
    os.getuid() != 0, reason="needs root: the owner of made directories is checked"
)
ADA = Person("p" * 32, "ada", 200001, "ada-1f2e3d")


@pytest.fixture
def lab(tmp_path, engine, fake):
    (tmp_path / "root").mkdir()
    site = Site(
        "0123456789ab", "gpulab-net", str(tmp_path / "root"), str(tmp_path / "servers"), "gpulab/base:1"
    )
    fake.on_start = lambda container: make(tmp_path / "root", container)
    return Storage(site, engine, 2**30, lambda path: 10 * 2**30)


def make(root: Path, container):
    """Do what the storage container would."""
    if "/storage/" in container.config["Cmd"][0]:
        for name in ("", "home", "workspace"):
            (root / ADA.slug / name).mkdir(exist_ok=True)
            os.chown(root / ADA.slug / name, ADA.uid if name else 0, ADA.uid if name else 0)


def test_directories_are_made_once(lab, fake, tmp_path):
    assert lab.prepare(ADA)
    assert fake.calls.count("create") == 2
    assert not lab.prepare(ADA)
    assert fake.calls.count("create") == 2
    assert fake.containers == {}


def test_directories_that_could_not_be_filled_are_filled_next_time(lab, fake, tmp_path):
    def make_but_do_not_fill(container):
        make(tmp_path / "root", container)
        fake.end(container, "/storage/" not in container.config["Cmd"][0])

    works, fake.on_start = fake.on_start, make_but_do_not_fill
    with pytest.raises(StorageUnavailable, match="could not be made: exit code 1"):
        lab.prepare(ADA)
    fake.on_start = works
    assert lab.prepare(ADA)
    assert not lab.prepare(ADA)


def test_what_a_hub_that_was_killed_left_in_the_middle_is_taken_away(lab, fake, engine):
    left = {"Image": "gpulab/base:1", "Labels": {"gpulab.hub": "0123456789ab"}}
    for purpose in ("storage", "skeleton"):
        engine.create(left, f"gpulab-01234567-{purpose}-{ADA.id[:12]}")
    assert lab.prepare(ADA)
    assert fake.containers == {}


def test_a_root_that_is_a_link_is_refused_with_what_to_write(tmp_path, engine):
    (tmp_path / "link").symlink_to(tmp_path)
    site = Site("0123456789ab", "n", str(tmp_path / "link"), str(tmp_path / "servers"), "gpulab/base:1")
    with pytest.raises(StorageUnavailable, match="is not a directory") as caught:
        Storage(site, engine, 0).prepare(ADA)
    assert caught.value.next_step == "An admin must set storage.root to a directory, not to a link to one."


def test_a_half_made_home_is_finished(lab, tmp_path):
    (tmp_path / "root" / ADA.slug / "home").mkdir(parents=True)
    assert lab.prepare(ADA)


def test_what_belongs_to_someone_else_is_not_handed_over(lab, tmp_path):
    lab.prepare(ADA)
    os.chown(tmp_path / "root" / ADA.slug / "home", 200002, 200002)
    with pytest.raises(StorageUnavailable, match="belongs to uid 200002, not to uid 200001"):
        lab.prepare(ADA)


@pytest.mark.parametrize("planted", ["", "home", "workspace"])
def test_a_link_in_the_place_of_a_directory_is_refused(lab, tmp_path, planted):
    lab.prepare(ADA)
    path = tmp_path / "root" / ADA.slug / planted
    path.rename(tmp_path / "moved")
    path.symlink_to("/")
    with pytest.raises(StorageUnavailable, match="is not a directory"):
        lab.prepare(ADA)


def test_a_missing_root_is_refused_and_nothing_is_made(lab, fake, tmp_path):
    (tmp_path / "root").rmdir()
    with pytest.raises(StorageUnavailable, match=r"storage root .* cannot be used: No such file"):
        lab.prepare(ADA)
    assert fake.calls == []


def test_a_full_root_is_refused_with_the_figures(tmp_path, engine):
    site = Site("0123456789ab", "n", str(tmp_path), str(tmp_path / "servers"), "gpulab/base:1")
    with pytest.raises(HostDiskShort, match=r"0\.5 GiB are free, 1\.0 GiB are kept") as caught:
        Storage(site, engine, 2**30, lambda path: 2**29).prepare(ADA)
    assert "Running servers go on" in caught.value.next_step


def test_the_reserve_itself_is_enough(lab, tmp_path, engine):
    site = Site("0123456789ab", "n", str(tmp_path / "root"), str(tmp_path / "servers"), "gpulab/base:1")
    assert Storage(site, engine, 2**30, lambda path: 2**30).prepare(ADA)


def test_what_only_root_may_still_write_is_not_free(tmp_path, engine, monkeypatch):
    full = SimpleNamespace(f_bavail=1, f_bfree=2**30, f_frsize=4096)
    monkeypatch.setattr(storage_module.os, "statvfs", lambda path: full)
    site = Site("0123456789ab", "n", str(tmp_path), str(tmp_path / "servers"), "gpulab/base:1")
    with pytest.raises(HostDiskShort):
        Storage(site, engine, 2**30).prepare(ADA)


def test_two_first_servers_of_one_person_make_the_directories_once(lab, fake, tmp_path):
    both = threading.Barrier(2)

    def start():
        both.wait(10)
        return lab.prepare(ADA)

    with ThreadPoolExecutor(2) as threads:
        made = [each.result() for each in [threads.submit(start), threads.submit(start)]]
    assert sorted(made) == [False, True]
    assert fake.calls.count("create") == 2


def test_an_engine_that_sees_another_disk_is_noticed(lab, fake):
    fake.on_start = None
    with pytest.raises(StorageUnavailable, match="were not made"):
        lab.prepare(ADA)


def test_a_container_that_fails_is_worded_with_its_output(lab, fake):
    fake.on_start = lambda c: (setattr(c, "output", "chown: Operation not permitted\n"), fake.end(c, 1))
    with pytest.raises(StorageUnavailable, match="Operation not permitted"):
        lab.prepare(ADA)


def test_a_fault_of_docker_leaves_no_container(lab, fake):
    fake.fault = AnswersServerError("start")
    with pytest.raises(EngineUnavailable):
        lab.prepare(ADA)
    assert fake.containers == {}


def test_the_files_of_a_lease_come_and_go(lab, tmp_path):
    lease = Lease("1" * 32, "w", ADA, "", "python", (), 1, 0.0)
    before = os.umask(0o077)
    lab.write_files(lease, ())
    os.umask(before)
    directory = tmp_path / "servers" / lease.id
    assert "lab:x:200001" in (directory / "passwd").read_text()
    assert (directory / "channel").is_dir()
    assert (directory.stat().st_mode & 0o777, (directory / "group").stat().st_mode & 0o777) == (0o755, 0o644)
    lab.remove_files(lease.id)
    assert not directory.exists()
