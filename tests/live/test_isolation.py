"""What a server reaches is exactly its lease, whatever the image, the options or the user say.

One lab on Docker 20.10 with the way `devices`, one on a current Docker with `cdi`; profiles: plain, and one
whose image asks for everything.
"""

import os
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
    """Docker's own root makes the nodes in the running container: what is left is the device cgroup."""
    lab.up("ada", {"shape": "gpu:1"})
    (own,) = sight(lab, "ada").nodes
    container = lab.container("ada")
    answers = {}
    for node in sorted((lab.paths.simulate / "dev").glob("nvidia[0-9]")):
        number = node.stat().st_rdev
        make = f"mknod -m 666 /{node.name} c {os.major(number)} {os.minor(number)}"
        done = container.exec_run(["sh", "-c", make], user="root", privileged=True)
        assert done.exit_code == 0, done.output
        answers[node.name] = lab.run("ada", OPEN.format(path=f"/{node.name}")).strip()
    granted_node = Path(own).name
    # A stand-in has no driver behind it, which is what the kernel says once the cgroup lets one through.
    assert answers.pop(granted_node) == "ENXIO"
    assert set(answers.values()) == {"EPERM"}
