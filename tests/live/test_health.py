"""Health and maintenance under a running lab: what a server, its owner, the pages and the next server get."""

import json
import os
import signal
from pathlib import Path

import pytest
from tests.live.lab import until
from tests.live.sight import granted, sight

pytestmark = pytest.mark.live

SETTINGS = "health: {probe_seconds: 10}\n"


@pytest.fixture(scope="module")
def lab(start_lab):
    running = start_lab("debian", machine="h100-mig", settings=SETTINGS)
    running.add_people("ada", "bo")
    return running


@pytest.fixture(autouse=True)
def _no_server(lab):
    yield
    lab.end_servers()


def past(lab, user):
    """The newest ended lease of a user."""
    found = json.loads(lab.gpulab("leases", "--all", "--json"))
    return next(lease for lease in found if lease["user"] == user and lease["closed_at"])


def change(lab, *words, until_seen):
    lab.gpulab("simulate", "set", *words)
    until(lambda: until_seen(json.loads(lab.gpulab("devices", "--json"))), " ".join(words))


class DeviceRules:
    """The device rules of a container in the kernel's first kind of control groups."""

    def __init__(self, container):
        pid = container.attrs["State"]["Pid"]
        groups = [line.split(":", 2) for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()]
        where = next((path for _, names, path in groups if "devices" in names.split(",")), None)
        if where is None:
            pytest.skip("this kernel keeps device rules as programs, which cannot be changed by a file")
        self.group = Path(f"/sys/fs/cgroup/devices{where}")
        node = Path(f"/proc/{pid}/root/dev/nvidia0").stat().st_rdev
        self.rule = f"c {os.major(node)}:{os.minor(node)} rwm"

    def lose(self):
        (self.group / "devices.deny").write_text(self.rule)

    def restore(self):
        (self.group / "devices.allow").write_text(self.rule)


def test_a_server_that_loses_its_gpu_is_told_so_until_it_has_it_again(lab):
    lab.up("ada", {"shape": "gpu:1"})
    rules = DeviceRules(lab.container("ada"))
    opened = (
        "import os\ntry:\n os.close(os.open('/dev/nvidia0', os.O_RDWR))\nexcept OSError as e: print(e.errno)"
    )
    before = lab.run("ada", opened)
    rules.lose()
    assert lab.run("ada", opened) == "1\n" != before
    until(lambda: lab.lease("ada")["trouble"], "the loss is told")
    assert lab.lease("ada")["trouble"].startswith("your server has lost its GPU: stop it and start it again")
    assert "the server of ada has lost its GPU" in lab.gpulab("device", "events")
    rules.restore()
    until(lambda: not lab.lease("ada")["trouble"], "it is over")


def test_maintenance_from_its_announcement_to_what_is_different_after_it(lab):
    session = lab.session("cy")
    lab.up("ada", {"shape": "mig:1g.10gb"})
    lab.up("bo", {"shape": "none"})
    lab.gpulab("maintenance", "on", "--at", "+1h", "--say", "driver upgrade")
    home = until(
        lambda: (
            (page := session.get(f"{lab.url}/hub/home", timeout=30).text).count("in maintenance from")
            and page
        ),
        "the hub's pages tell of it",
    )
    assert ": driver upgrade. Servers on them end then; files stay" in home
    assert "in maintenance from" in session.get(f"{lab.url}/services/gpulab/", timeout=30).text
    assert "in maintenance from" in lab.refused("cy", {"shape": "gpu:1"})
    assert lab.server("ada")["ready"]

    # Its time comes while the service is down: whoever comes next does what is due.
    lab.stop("service", signal.SIGKILL)
    lab.gpulab("maintenance", "on", "--say", "driver upgrade")
    assert lab.server("ada")["ready"]
    lab.start("service")
    until(lambda: not lab.server("ada"), "the hub knows that ada's server ended")
    ended = past(lab, "ada")
    assert ended["cause"] == "maintenance"
    assert ended["close_reason"].startswith("ended for maintenance at 20")
    assert ended["close_reason"].endswith(": driver upgrade")
    assert lab.server("bo")["ready"]
    until(
        lambda: "has let go of the GPUs: work on them" in lab.gpulab("maintenance", "status"),
        "the GPUs are free",
    )
    assert "in maintenance since" in lab.refused("ada", {"shape": "mig:1g.10gb"})

    # The agent has let go: it sees the change when it is told that maintenance is over, and not before.
    until(lambda: '"in maintenance"' in lab.gpulab("devices", "--json"), "the agent has let go")
    lab.gpulab("simulate", "set", "mig", "1", "3g.40gb@4,1g.10gb@0")
    assert len(json.loads(lab.gpulab("devices", "--json"))["migs"]) == 7
    said = lab.gpulab("maintenance", "off")
    assert "MIG layout of " in said
    assert ": 7 x 1g.10gb (0, 1, 2, 3, 4, 5, 6) -> 1g.10gb (0), 3g.40gb (4)" in said
    assert "GPUs get into containers by devices" in said
    lab.up("ada", {"shape": "mig:3g.40gb"})
    assert sight(lab, "ada").uuids == granted(lab, "ada")
    until(lambda: "its MIG layout was changed" in lab.gpulab("device", "events"), "the change is in the log")
    notices = [e for e in json.loads(lab.gpulab("device", "events", "--json")) if e["notice"]]
    assert [e for e in notices if e["kind"] == "layout"] == []
