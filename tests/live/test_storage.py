"""People's files on the real lab: kept for life, nobody else's, and no way to anything outside."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from tests.live.lab import until

pytestmark = pytest.mark.live

WRITE = """
import os
for place in ("/workspace/kept.txt", "/home/lab/kept.txt"):
    with open(place, "w") as out:
        out.write("of ada")
print(os.getuid())
"""
READ = """
import os
print(os.getuid(), open("/workspace/kept.txt").read(), open("/home/lab/kept.txt").read(), sep="|")
"""
PLANT = """
import os, shutil
targets = {targets!r}
for place, target in targets.items():
    if os.path.islink(place):
        os.unlink(place)
    elif os.path.isdir(place):
        shutil.rmtree(place)
    os.symlink(target, place)
"""
TRY = """
import errno, json, os
answers = {{}}
for path in {paths!r}:
    for how in ("r", "w"):
        try:
            open(path, how).close()
            answers[path + " " + how] = "opened"
        except OSError as error:
            answers[path + " " + how] = errno.errorcode[error.errno]
print(json.dumps(answers))
"""
SHARED = """
import errno, json, os
answers = {}
for name in sorted(os.listdir("/data")) if os.path.isdir("/data") else []:
    place = f"/data/{name}"
    try:
        open(f"{place}/by-{os.environ['JUPYTERHUB_USER']}", "w").close()
        wrote = "wrote"
    except OSError as error:
        wrote = errno.errorcode[error.errno]
    answers[name] = [open(f"{place}/text").read(), wrote]
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory, live_dir):
    """Directories that a site shares: one for a group with writers of its own, one for everybody."""
    root = live_dir / "shared"
    for name, group in (("corpora", 64_001), ("everyone", 0)):
        place = root / name
        place.mkdir(parents=True)
        (place / "text").write_text(name)
        os.chown(place, 0, group)
        place.chmod(0o2775)
    return root


@pytest.fixture(scope="module")
def lab(start_lab, shared):
    running = start_lab(
        settings=f"""
servers: {{memory: 1G}}
storage:
  shared:
    - {{name: corpora, path: {shared}/corpora, groups: [nlp], writers: [nlp-admins]}}
    - {{name: everyone, path: {shared}/everyone}}
"""
    )
    running.add_people("ada", "bo", "cy", "dee")
    return running


@pytest.fixture(autouse=True)
def _no_server(lab):
    yield
    lab.end_servers()


def test_files_outlive_the_server_and_the_lab_s_processes(lab):
    lab.up("ada")
    uid = lab.run("ada", WRITE).strip()
    lab.down("ada")
    lab.go_down()
    lab.come_up()
    lab.up("ada")
    assert lab.run("ada", READ).strip() == f"{uid}|of ada|of ada"
    lab.up("ada", {}, "second")
    assert lab.run("ada", READ, "second").strip() == f"{uid}|of ada|of ada"
    assert int(uid) == lab.person("ada").uid
    kept = lab.home("ada") / "workspace" / "kept.txt"
    assert (kept.stat().st_uid, kept.read_text()) == (int(uid), "of ada")


def test_nobody_reaches_another_one_s_files(lab):
    for name in ("ada", "bo"):
        lab.up(name)
    lab.run("ada", WRITE)
    theirs = lab.home("ada")
    assert lab.person("ada").uid != lab.person("bo").uid
    for name in ("home", "workspace"):
        found = (theirs / name).stat()
        assert (found.st_uid, found.st_mode & 0o777) == (lab.person("ada").uid, 0o700)
    paths = ["/workspace/kept.txt", f"{theirs}/home/kept.txt", str(lab.paths.config)]
    answers = json.loads(lab.run("bo", TRY.format(paths=[*paths[1:]])))
    assert set(answers.values()) == {"ENOENT"}
    assert json.loads(lab.run("bo", "import json, os\nprint(json.dumps(os.listdir('/home')))")) == ["lab"]
    # Even where a container sees the whole storage, another uid stays outside.
    tried = subprocess.run(
        ["setpriv", f"--reuid={lab.person('bo').uid}", "--clear-groups", "cat", theirs / "home/kept.txt"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert tried.returncode == 1
    assert "Permission denied" in tried.stderr


def test_links_that_a_user_plants_gain_nothing(lab, live_dir):
    outside = live_dir / "outside"
    outside.mkdir()
    secret = outside / "secret"
    secret.write_text("the host's")
    secret.chmod(0o600)
    lab.up("bo")
    lab.run("bo", WRITE)
    lab.up("ada")
    theirs = lab.home("bo")
    targets = {
        "/home/lab/workspace": "/",
        "/home/lab/.ssh": f"{theirs}/home",
        "/home/lab/.cache": str(outside),
        "/home/lab/.local": "/",
        "/workspace/outputs": f"{theirs}/workspace",
        "/workspace/code": str(outside),
    }
    watched = [Path("/"), Path("/etc"), outside, secret, theirs, theirs / "home", theirs / "workspace"]
    before = _state(watched)
    lab.run("ada", PLANT.format(targets=targets))
    lab.down("ada")
    lab.restart_hub()
    lab.up("ada")
    reach = [
        "/home/lab/.cache/secret",
        "/workspace/code/secret",
        "/home/lab/.ssh/kept.txt",
        "/workspace/outputs/kept.txt",
        f"/home/lab/workspace{secret}",
    ]
    assert set(json.loads(lab.run("ada", TRY.format(paths=reach))).values()) == {"ENOENT"}
    assert _state(watched) == before
    assert secret.read_text() == "the host's"
    # The links are ada's own files, and nothing went through them.
    planted = lab.home("ada") / "workspace" / "outputs"
    assert planted.readlink() == theirs / "workspace"
    assert planted.lstat().st_uid == lab.person("ada").uid


def _state(paths):
    found = {}
    for path in paths:
        stat = path.lstat()
        names = sorted(p.name for p in path.iterdir()) if path.is_dir() and path != Path("/") else None
        found[path] = (stat.st_uid, stat.st_gid, stat.st_mode, names)
    return found


def test_shared_directories_are_for_whom_they_are_named(lab, shared):
    for group, members in {"nlp": ["ada"], "nlp-admins": ["bo"]}.items():
        assert lab.api("POST", f"groups/{group}").status_code in (201, 409)
        lab.api("POST", f"groups/{group}/users", json={"users": members}).raise_for_status()
    seen = {}
    for name in ("ada", "bo", "cy"):
        lab.up(name)
        seen[name] = json.loads(lab.run(name, SHARED))
        lab.down(name)
    everyone = {"everyone": ["everyone", "EROFS"]}
    assert seen == {
        "ada": {"corpora": ["corpora", "EROFS"], **everyone},
        "bo": {"corpora": ["corpora", "wrote"], **everyone},
        "cy": everyone,
    }
    assert (shared / "corpora" / "by-bo").stat().st_gid == 64_001


def test_a_storage_that_is_full_or_gone_refuses_in_words_and_still_releases(start_lab, live_dir):
    root = live_dir / "labs" / "small"
    root.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m,mode=711", "tmpfs", root], check=True)
    lab = start_lab(settings=f"servers: {{memory: 1G}}\nstorage: {{root: {root}, reserve: 32M}}\n")
    lab.add_people("ada", "bo")
    try:
        lab.up("ada", {"shape": "gpu:1"})
        (root / "filler").write_bytes(bytes(48 << 20))
        message = lab.refused("bo", {"shape": "gpu:1"})
        assert "The lab's storage is full: 0.0 GiB are free" in message
        assert "[host_disk]" in message
        assert [lease["user"] for lease in lab.leases()] == ["ada"]
        lab.down("ada")
        assert lab.leases() == []
        (root / "filler").unlink()
        lab.up("bo", {"shape": "gpu:1"})
        subprocess.run(["umount", "--lazy", root], check=True)
        root.rmdir()
        message = lab.refused("ada", {})
        assert f"The storage root {root} cannot be used: No such file or directory." in message
        assert "[storage]" in message
        lab.down("bo")
        assert lab.leases() == []
        until(lambda: lab.containers() == [], "no container is left")
        assert not root.exists()
    finally:
        subprocess.run(["umount", "--lazy", root], check=False, capture_output=True)
