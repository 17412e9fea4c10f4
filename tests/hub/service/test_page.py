"""The page at /services/gpulab/, as somebody with a cookie gets it."""

from tests.hub.service.test_api import cookie_of, end

from gpulab_hub.service.api import PREFIX


async def page(service, user):
    return (await service.ask("GET", PREFIX, None, None, Cookie=cookie_of(service, user))).body.decode()


async def test_who_is_not_signed_in_is_sent_to_the_hub(service):
    answer = await service.ask("GET", PREFIX)
    assert answer.status == 302
    assert answer.headers["Location"].startswith("/hub/api/oauth2/authorize?client_id=service-gpulab")


async def test_the_page_is_the_hubs_in_look_and_shows_who_has_what(service, world):
    world.up("ada", server="train")
    text = await page(service, "li")
    assert '<link rel="stylesheet" href="/hub/static/css/style.min.css" />' in text
    assert 'href="/services/gpulab/">GPUs</a>' in text
    assert "ada, train" in text
    assert "None runs." in text
    assert "For admins" not in text


async def test_an_owner_reads_how_a_server_ended_and_its_output(service, world):
    end(world)
    world.docker.output = "<script>alert(1)</script>"
    end(world)
    text = await page(service, "ada")
    assert "ended: out of memory at " in text
    assert "&lt;script&gt;alert(1)" in text
    assert "<script>alert" not in text
    for other in ("li", "root"):
        assert "out of memory" not in await page(service, other)


async def test_an_admin_sees_what_needs_one(service, world):
    lease, container = world.up("ada")
    world.lab.admission.close_lease(lease.id, "a fault")
    service.lab.report = world.once()
    text = await page(service, "root")
    assert f"In quarantine: {container.name}" in text
    assert "its lease was closed" in text
    assert "In quarantine" not in await page(service, "ada")


async def test_a_button_without_the_pages_token_ends_nothing(service, world):
    lease, _ = world.up("ada")
    path = f"{PREFIX}leases/{lease.id}/end"
    answer = await service.ask("POST", path, None, b"", Cookie=cookie_of(service, "ada"))
    assert answer.status == 403
    assert b"That did not work" in answer.body
    assert world.record(lease).state == "running"


async def test_a_button_ends_a_server(service, world):
    lease, _ = world.up("ada")
    first = await service.ask("GET", PREFIX, None, None, Cookie=cookie_of(service, "ada"))
    token = first.body.decode().split('name="_xsrf" value="')[1].split('"')[0]
    cookies = "; ".join(
        [cookie_of(service, "ada"), *(c.split(";")[0] for c in first.headers.get_list("Set-Cookie"))]
    )
    form = f"_xsrf={token}".encode()
    answer = await service.ask(
        "POST",
        f"{PREFIX}leases/{lease.id}/end",
        None,
        form,
        Cookie=cookies,
        **{"Content-Type": "application/x-www-form-urlencoded"},
    )
    assert answer.status == 303, answer.body
    assert world.record(lease).state == "closing"
