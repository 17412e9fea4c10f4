"""Nothing of another's is in anything that the service says, beyond the site's policy.

Whatever is somebody's carries a mark of its own here, so that it is found in any text.
"""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.lab import NOON, find_person, machine
from tests.fakes.service_pages import cookie

from gpulab_hub.accounting.report import By
from gpulab_hub.admission import View
from gpulab_hub.history import HeldDevice, Record
from gpulab_hub.service.api import API, ENDPOINTS, PREFIX
from gpulab_hub.service.board import Source, board
from gpulab_hub.service.device_view import ZOOMS, device_view
from gpulab_hub.service.readings import readings_view
from gpulab_hub.service.streams import PageFeed, tick
from gpulab_hub.service.view import devices_view, lease_view
from gpulab_hub.standing import OpenLease
from gpulab_hub.visible import Holders, Privacy, Viewer, holder_words, process_name
from gpulab_hub.withheld import Survey, withheld
from gpulab_spawner.errors import Refusal
from gpulab_spawner.telemetry.readings import Batch, DeviceReading, ProcessReading

PEOPLE = ("zqanna", "zqbert")
LOOKS = (*PEOPLE, "root")


def marks(owner):
    """What is an owner's, by what it is; no mark is in another."""
    own = {"zqanna": "a7", "zqbert": "b8"}[owner]
    return {
        "name": owner,
        "server": f"srv-q{own}",
        "past server": f"old-q{own}",
        "process": f"prcq{own}",
        "ending": f"because q{own} said so",
        "output": f"printed by q{own}",
    }


def allowed(viewer, owner, holders):
    """What of an owner's a viewer may be told."""
    if viewer == owner:
        return set(marks(owner))
    if viewer == "root":
        return set(marks(owner)) - {"output"}
    return {"name", "server"} if holders == Holders.NAME else set()


def require_private(text, viewer, holders):
    for owner in PEOPLE:
        for what in marks(owner).keys() - allowed(viewer, owner, holders):
            assert marks(owner)[what] not in text, f"{viewer} is told the {what} of {owner}"


@pytest.fixture
def scene(service, world):
    """Both have a past server that ended, and hold a GPU on which a process of theirs runs."""
    service.hub.names |= set(PEOPLE)
    processes = {}
    for number, owner in enumerate(PEOPLE):
        person = find_person(world.lab.engine, owner)
        world.people[person.id] = person
        what = marks(owner)
        world.docker.output = what["output"]
        lease, container = world.up(owner, server=what["past server"])
        viewer = Viewer(owner, person.id)
        service.lab.end(viewer, lease.id, what["ending"])
        world.once()
        lease, container = world.up(owner, server=what["server"])
        processes[f"GPU-{number}"] = (ProcessReading(7, what["process"], container.id, 2**30, 5.0),)
    world.lab.now += 5  # so that there is usage
    devices = tuple(DeviceReading(key, key, 5.0, 1, 2, found) for key, found in processes.items())
    service.lab.live.take(Batch("node", world.lab.now, 1.0, "boot", devices=devices))
    failed = tuple(f"closed lease 1 of {owner}: Docker does not answer" for owner in PEOPLE)
    service.lab.report = replace(world.once(), failed=failed)
    return service


def policy(service, holders):
    privacy = Privacy(holders, lambda user: "vision")
    admission = service.lab.admission
    admission._around = replace(admission._around, privacy=privacy)


async def everything(service, reader, viewer):
    """Return all that the service says to a viewer, by address."""
    (leases,) = [(await service.ask("GET", "leases", "root")).json["leases"]]
    ids = [lease["id"] for lease in leases]
    addresses = [
        f"{API}{e.path}"
        for e in ENDPOINTS
        if e.method == "get" and not e.stream and "{" not in e.path and e.path != "openapi.json"
    ]
    addresses += [f"{API}leases?past=1", f"{API}readings?device=GPU-0&since=0", f"{API}readings?device=GPU-1"]
    addresses += [f"{API}usage?by={by}{mine}" for by in By for mine in ("", "&mine=1")]
    addresses += [f"{API}leases/{lease}" for lease in ids]
    addresses += [f"{API}readings?lease={lease}&since=0" for lease in ids]
    addresses += [f"{API}readings?device=lease:{lease}&since=0" for lease in ids]
    found = {a: (await service.ask("GET", a, viewer)).body.decode() for a in addresses}
    reports = [f"{PREFIX}report", f"{PREFIX}report.csv"]
    pages = [PREFIX, f"{PREFIX}devices/GPU-0", f"{PREFIX}devices/GPU-1?zoom=day", f"{PREFIX}usage", *reports]
    for address in pages:
        answer = await service.ask("GET", address, None, None, Cookie=f"service-gpulab={cookie(viewer)}")
        assert answer.status == (403 if address in reports and viewer != "root" else 200)
        # Its own name is in every page's bar.
        found[address] = answer.body.decode()
    for lease in ids:
        others = [x for x in leases if x["id"] == lease and x["user"] != viewer]
        if others and viewer != "root":
            answer = await service.ask("DELETE", f"leases/{lease}", viewer, b"")
            assert answer.status == 403
            found[f"DELETE {lease}"] = answer.body.decode()
    for address in (f"{PREFIX}events", f"{API}events"):
        found[address] = json.dumps(await (await reader(address, viewer)).next(), ensure_ascii=False)
    return found


@pytest.mark.parametrize("holders", Holders)
@pytest.mark.parametrize("viewer", LOOKS)
async def test_nothing_of_anothers_is_in_any_answer_beyond_the_policy(scene, reader, live, viewer, holders):
    policy(scene, holders)
    found = await everything(scene, reader, viewer)
    for text in found.values():
        require_private(text, viewer, holders)
    used = found[f"{API}usage?by=user"]
    assert [owner in used for owner in PEOPLE] == [viewer in (owner, "root") for owner in PEOPLE]
    together = "".join(found.values())
    for owner in PEOPLE:
        if viewer == "root":
            assert all(marks(owner)[what] in together for what in ("name", "server", "process"))
        elif viewer == owner:
            assert all(mark in together for mark in marks(owner).values())
        else:
            assert (marks(owner)["server"] in together) == (holders == Holders.NAME)
            assert ("group vision" in together) == (holders == Holders.GROUP)


@pytest.mark.parametrize("holders", Holders)
@pytest.mark.parametrize("viewer", LOOKS)
def test_a_refusal_names_nobody_beyond_the_policy(scene, world, viewer, holders):
    policy(scene, holders)
    with pytest.raises(Refusal) as caught:
        world.lab.open(viewer, "gpu:2", server="another")
    text = json.dumps(caught.value.as_json())
    # To the hub an admin is a user like others: a refusal tells them what it tells everybody.
    require_private(text, "nobody" if viewer == "root" else viewer, holders)


# The rules themselves, for any owner and any viewer

OWNERS = st.lists(st.sampled_from([*PEOPLE, None]), min_size=2, max_size=2)


@given(OWNERS, st.sampled_from(LOOKS), st.sampled_from(list(Holders)), st.booleans(), st.booleans())
def test_models_tell_others_no_more_than_the_policy(owners, looks, holders, grouped, own_container):
    viewer = Viewer(looks, f"id of {looks}"[:32], is_admin=looks == "root")
    privacy = Privacy(holders, lambda user: "vision" if grouped else None)
    held, readings, records = {}, [], []
    for number, owner in enumerate(owners):
        key = f"GPU-{number}"
        if owner is None:
            readings.append(DeviceReading(key, key, 1.0))
            continue
        what = marks(owner)
        held[key] = OpenLease(
            f"{number}", "node", f"id of {owner}"[:32], owner, what["server"], "running", 1, container_id="c"
        )
        process = ProcessReading(1, what["process"], "c" if own_container else None)
        readings.append(DeviceReading(key, key, 1.0, processes=(process,)))
        records.append(a_record(number, owner, what, key))
    survey = Survey.of(machine(2))
    words = lambda lease: holder_words(privacy.known(viewer, lease.person_id, lease.user), None)  # noqa: E731
    view = View(survey, held, withheld(survey, held, {}, words), NOON)
    source = Source(view, Batch("node", NOON, 1.0, "boot", devices=tuple(readings)))
    found = board(source, lambda key: "", 15.0)
    said = [
        PageFeed().render(tick(1, found, None, privacy), viewer).decode(),
        devices_view(view, viewer, privacy, 15.0).model_dump_json(),
        readings_view(source, viewer, privacy).model_dump_json(),
        *(lease_view(record, viewer, privacy).model_dump_json() for record in records),
        repr(replace(device_view("GPU-0", found, records, (), ZOOMS[0], viewer, privacy), row=None)),
    ]
    for text in said:
        require_private(text, looks, holders)


def a_record(number, owner, what, key):
    return Record(
        id=f"{number}",
        node="node",
        person_id=f"id of {owner}"[:32],
        user=owner,
        server=what["server"],
        profile="pytorch",
        shape="gpu:1",
        image="image",
        state="closed",
        memory_bytes=1,
        opened_at=NOON,
        ends_at=None,
        container_id="c",
        container_name="c",
        closed_at=NOON + 1,
        close_reason=what["ending"],
        cause="asked",
        last_words=what["output"],
        trouble=what["ending"],
        devices=(HeldDevice(key, key, None, None, None),),
    )


@given(st.text(), st.text())
def test_a_name_that_was_reused_is_no_owner(name, person):
    assert not Viewer(name, None).owns(person)
    known = Privacy(Holders.IN_USE).known(Viewer(name, "another"), "somebody", name, "s")
    assert (known.mine, known.user, known.server, known.who) == (False, None, None, "in use")


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_the_name_of_a_process_is_cut_and_one_printable_line(name):
    shown = process_name(name)
    assert shown.isprintable()
    assert len(name.encode()) > 15 or not name.isprintable() or shown == name


def test_words_for_a_holder():
    ada = Viewer("ada", "1")
    by_name, by_group = Privacy(), Privacy(Holders.GROUP, {"li": "vision"}.get)
    assert holder_words(by_name.known(ada, "2", "li"), "15:40") == "taken by li until 15:40"
    assert holder_words(by_name.known(ada, "1", "ada"), None) == "taken by you"
    assert holder_words(by_group.known(ada, "2", "li"), None) == "taken by group vision"
    assert holder_words(by_group.known(ada, "3", "mo"), "15:40") == "in use until 15:40"
    assert holder_words(by_group.known(Viewer("root", None, is_admin=True), "2", "li"), None) == "taken by li"
