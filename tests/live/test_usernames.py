"""Names that trip other systems up, from the invite to a kernel on the real lab."""

import re

import pytest

pytestmark = pytest.mark.live

NAMES = [
    "a.b",
    "a-b",
    "a+b",
    "ada@example.org",
    "zoë",
    "李雷",
    "-dash",
    "o'neil",
    "~tilde",
    "two words",
    "n" * 200,
]
CONTAINER = re.compile(r"gpulab-[0-9a-f]{8}-[0-9a-f]{16}")
WHO = "import getpass, os\nprint(os.environ['JUPYTERHUB_USER'], getpass.getuser(), os.getuid(), sep='|')"


@pytest.fixture(scope="module")
def lab(start_lab):
    return start_lab(settings="servers: {memory: 512M}\n")


def test_every_name_gets_a_server_of_its_own(lab):
    uids, directories = set(), set()
    for name in [*NAMES, "Ada"]:
        known = name.lower()
        said = lab.gpulab("user", "add", "--", name)
        lab.accept(said.split("#", 1)[1].split()[0])
        lab.up(known)
        hub_name, inside, uid = lab.run(known, WHO).strip().split("|")
        assert (hub_name, inside) == (known, "lab")
        assert CONTAINER.fullmatch(lab.container(known).name), "a container's name carries no user name"
        uids.add(uid)
        directories.add(lab.home(known))
        lab.down(known)
    assert len(uids) == len(directories) == len(NAMES) + 1
    assert sorted(p.name for p in lab.paths.storage.iterdir()) == sorted(d.name for d in directories)
    assert lab.leases() == []
