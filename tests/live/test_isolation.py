"""What a server reaches is exactly its lease, whatever the image, the options or the user say.

One lab on Docker 20.10 with the way `devices`, one on a current Docker with `cdi`; profiles: plain, and one
whose image asks for everything.
"""

import io
import os
import tarfile
from pathlib import Path

import pytest
from tests.live import images
from tests.live.sight import LOOK, NOTHING, granted, seen, sight

pytestmark = pytest.mark.live

GREEDY = "gpulab-test/greedy:latest"
GREEDY_ENV = (
    "ENV NVIDIA_VISIBLE_DEVICES=all CUDA_VISIBLE_DEVICES=0,1 NVIDIA_DRIVER_CAPABILITIES=all "
    "LD_PRELOAD=/opt/lab/server/none.so"
)
SETTINGS = f"""
servers: {{memory: 1G}}
profiles:
  - {{display_name: Plain, gpu: [none, "gpu:1"], default: true}}
  - display_name: Greedy
    gpu: [none, "gpu:1"]
    kubespawner_override: {{image: "{GREEDY}"}}
"""
WIDEN = """
import os, subprocess, sys
os.environ.update(NVIDIA_VISIBLE_DEVICES="all", CUDA_VISIBLE_DEVICES="0,1", GPULAB_DEVICES="all")
print(subprocess.run([sys.executable, "-c", {look!r}], capture_output=True, text=True, check=True).stdout)
"""
MAKE_NODE = """
import errno, os
for place in ("/tmp/node", "/home/lab/node", "/dev/shm/node"):
    try:
        os.mknod(place, 0o20666, {number})
        print("made")
    except OSError as error:
        print(errno.errorcode[error.errno])
"""
OPEN = 'import errno, os\ntry: os.open("{path}", 2)\nexcept OSError as e: print(errno.errorcode[e.errno])'


@pytest.fixture(scope="module", params=["debian-devices", "current-cdi"])
def lab(request, start_lab):
    name, injection = request.param.split("-")
    engine = request.getfixturevalue(f"engine_{name}")
    images.derive(engine, GREEDY, GREEDY_ENV)
    running = start_lab(name, injection=injection, settings=SETTINGS)
    running.add_people("ada", "bo")
    return running


@pytest.fixture(autouse=True)
def _no_server(lab):
    yield
    lab.end_servers()


def test_an_image_that_asks_for_all_gets_its_lease(lab):
    lab.up("ada", {"profile": "greedy", "shape": "gpu:1"})
    view = sight(lab, "ada")
    assert view.uuids == granted(lab, "ada")
    assert len(view.nodes) == 1
    assert view.variables == {
        "NVIDIA_VISIBLE_DEVICES": "void",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "GPULAB_DEVICES": view.uuids[0],
    }


def test_an_image_that_asks_for_all_gets_nothing_without_a_lease(lab):
    lab.up("ada", {"profile": "greedy", "shape": "none"})
    view = sight(lab, "ada")
    assert (view.nodes, view.control, view.uuids) == NOTHING
    assert view.variables["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert lab.lease("ada")["devices"] == []


def test_the_options_of_a_request_carry_no_way_in(lab):
    for option in ("environment", "image", "mounts", "devices", "extra_host_config", "unlisted_choice"):
        message = lab.refused("ada", {"shape": "gpu:1", option: {"NVIDIA_VISIBLE_DEVICES": "all"}})
        assert f"There is no option '{option}'" in message
    assert lab.leases() == []
    assert lab.containers() == []


def test_a_user_cannot_widen_what_is_seen(lab):
    lab.up("ada", {"shape": "gpu:1"})
    lab.up("bo", {"shape": "gpu:1"})
    own, other = sight(lab, "ada"), sight(lab, "bo")
    assert own.nodes != other.nodes
    changed = seen(lab.run("ada", WIDEN.format(look=LOOK)))
    assert (changed.nodes, changed.uuids) == (own.nodes, own.uuids)

    foreign = (lab.paths.simulate / "dev" / Path(other.nodes[0]).name).stat().st_rdev
    assert set(lab.run("ada", MAKE_NODE.format(number=foreign)).split()) == {"EPERM"}


def test_the_cgroup_refuses_a_node_that_is_there_but_was_not_granted(lab):
    """Docker itself puts the nodes into the running container: what is left is the device cgroup."""
    lab.up("ada", {"shape": "gpu:1"})
    (own,) = sight(lab, "ada").nodes
    answers = {}
    for node in sorted((lab.paths.simulate / "dev").glob("nvidia[0-9]")):
        assert lab.container("ada").put_archive("/", _packed(node))
        answers[node.name] = lab.run("ada", OPEN.format(path=f"/{node.name}")).strip()
    # A stand-in has no driver behind it, which is what the kernel says once the cgroup lets one through.
    assert answers.pop(Path(own).name) == "ENXIO"
    assert set(answers.values()) == {"EPERM"}


def _packed(node):
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        entry = tarfile.TarInfo(node.name)
        entry.type, entry.mode = tarfile.CHRTYPE, 0o666
        entry.devmajor, entry.devminor = os.major(node.stat().st_rdev), os.minor(node.stat().st_rdev)
        tar.addfile(entry)
    return archive.getvalue()
