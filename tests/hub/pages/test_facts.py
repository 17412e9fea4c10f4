import pytest

from gpulab_hub.pages.assets import STATIC, assets
from gpulab_hub.pages.facts import lab_facts, unencrypted


@pytest.mark.parametrize(
    ("address", "public_url", "warned"),
    [
        ("127.0.0.1", None, False),
        ("127.8.0.1", None, False),
        ("::1", None, False),
        ("localhost", None, False),
        ("0.0.0.0", None, True),
        ("::", None, True),
        ("10.1.2.3", None, True),
        ("gpu1.example.org", None, True),
        ("0.0.0.0", "https://lab.example.org", False),
        ("127.0.0.1", "http://lab.example.org", True),
        ("127.0.0.1", "http://localhost:8000", False),
        ("0.0.0.0", "http://[::1]:8000", False),
        ("127.0.0.1", "", True),
    ],
)
def test_reached_from_other_machines_without_tls(address, public_url, warned):
    assert unencrypted(address, public_url) is warned


def test_the_facts_are_what_the_templates_read():
    facts = lab_facts(name="L", address="0.0.0.0", public_url=None, simulated="2xh100", assets={"a.css": "x"})
    lab = facts["gpulab"]
    assert list(facts) == ["gpulab"]
    assert (lab["name"], lab["simulated"], lab["assets"]) == ("L", "2xh100", {"a.css": "x"})
    assert "without encryption" in lab["unencrypted"]
    assert not lab["password_page"]
    assert not lab["gpus_page"]


def test_an_asset_has_a_new_address_when_its_content_changes(tmp_path):
    (tmp_path / "a.css").write_text("one")
    first = assets(tmp_path)["a.css"]
    (tmp_path / "a.css").write_text("two")
    assert first.startswith("gpulab/static/a.css?v=")
    assert assets(tmp_path)["a.css"] != first


def test_the_pages_files_are_there():
    assert {"gpulab.css", "spawn.js", "pending.js"} <= set(assets(STATIC))
