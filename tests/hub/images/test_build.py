import io
import tarfile

import pytest
from tests.hub.images.fakeengine import FakeEngine, Image

from gpulab_hub.images import build as module
from gpulab_hub.images.build import build, follow
from gpulab_hub.images.failures import BuildFailed
from gpulab_hub.images.site import Site
from gpulab_spawner.errors import EngineUnavailable

SITE = Site(
    certificates={"lab.crt": b"PEM"},
    pip={"index-url": ("https://u:secret@m.example/simple",)},
    proxies={"http_proxy": "http://p:1"},
)


@pytest.fixture
def recipes(tmp_path):
    """Directory with one recipe, `base`."""
    (tmp_path / "recipes/base").mkdir(parents=True)
    (tmp_path / "recipes/base/Dockerfile").write_text("FROM x\n")
    return tmp_path / "recipes"


@pytest.fixture
def make(recipes, tmp_path):
    """Build `base` on an engine; returns what was built and the lines that were said."""

    def run(engine, site=SITE, **options):
        said = []
        built = build("base", engine, site=site, cache=tmp_path, say=said.append, recipes=recipes, **options)
        return built, said

    return run


def test_a_first_build_pulls_a_base_and_tags_version_and_latest(make):
    engine = FakeEngine()
    built, said = make(engine)
    assert said == ["pulling debian:bookworm-slim", "installing"]
    assert built.fresh
    assert engine.known["gpulab/base:latest"].id == engine.known[built.reference].id == built.id
    options = engine.builds[0]
    assert options["buildargs"] == {"BASE": "debian:bookworm-slim", "http_proxy": "http://p:1"}
    assert options["network_mode"] == "host"


def test_the_context_holds_certificates_and_pips_settings_and_the_labels_hold_no_secret(make):
    engine = FakeEngine()
    make(engine)
    with tarfile.open(fileobj=io.BytesIO(engine.builds[0]["fileobj"].getvalue())) as tar:
        assert sorted(tar.getnames()) == ["Dockerfile", "site/ca/lab.crt", "site/pip.conf"]
    assert "secret" not in str(engine.builds[0]["labels"]) + str(engine.builds[0]["buildargs"])


def test_nothing_is_built_when_nothing_changed(make):
    engine = FakeEngine()
    first, _ = make(engine)
    second, said = make(engine)
    assert (second.id, second.fresh, said) == (first.id, False, [])
    assert len(engine.builds) == 1


def test_pips_settings_are_no_reason_to_build_again(make):
    engine = FakeEngine()
    make(engine)
    assert not make(engine, Site(certificates=SITE.certificates))[0].fresh


@pytest.mark.parametrize("change", ["recipe", "certificates", "base", "asked", "version"])
def test_it_is_built_again_when_something_changed(make, recipes, change, monkeypatch):
    engine = FakeEngine()
    make(engine)
    site, options = SITE, {}
    if change == "recipe":
        (recipes / "base/Dockerfile").write_text("FROM y\n")
    elif change == "certificates":
        site = Site()
    elif change == "base":
        options = {"base": "ubuntu:24.04"}
    elif change == "asked":
        options = {"rebuild": True}
    else:
        monkeypatch.setattr(module, "version", lambda _: "9.9")
    assert make(engine, site, **options)[0].fresh
    assert len(engine.builds) == 2
    assert engine.builds[1]["nocache"] is (change == "asked")


def test_a_base_that_is_there_is_not_pulled(make):
    engine = FakeEngine(offline=True)
    engine.known["my/base:1"] = Image(engine, "my", {})
    make(engine, base="my/base:1")
    assert engine.builds[0]["buildargs"]["BASE"] == "my/base:1"


def test_a_base_that_cannot_be_had_is_named(make):
    with pytest.raises(BuildFailed, match=r"my/base:1 is not on this engine .*: no such host"):
        make(FakeEngine(offline=True), base="my/base:1")


def test_where_no_base_can_be_pulled_one_is_made(make, monkeypatch):
    engine = FakeEngine(offline=True)
    made = Image(engine, "root", {})

    asked = []

    def make_root(client, cache, say, anew):
        asked.append(anew)
        made.tag("gpulab/root", "bookworm")
        return "gpulab/root:bookworm"

    monkeypatch.setattr(module, "root_reference", lambda: "gpulab/root:bookworm")
    monkeypatch.setattr(module, "ensure_root", make_root)
    _, said = make(engine)
    assert said[:2] == ["pulling debian:bookworm-slim", "no base image can be pulled here"]
    assert engine.builds[0]["labels"][module.BASE] == "gpulab/root:bookworm"
    # Made once: a second build finds it, and with it the engine's cache.
    engine.known = {"gpulab/root:bookworm": made}
    assert make(engine)[1] == ["installing"]
    assert make(engine, rebuild=True)[1][:1] == ["pulling debian:bookworm-slim"]
    assert asked == [False, True]


def test_a_failed_build_leaves_the_tags_and_tells_its_last_lines(make, recipes):
    engine = FakeEngine()
    first, _ = make(engine)
    (recipes / "base/Dockerfile").write_text("FROM y\n")
    engine.fails = "The command '/bin/sh -c x' returned a non-zero code: 1"
    with pytest.raises(BuildFailed) as caught:
        make(engine)
    assert "returned a non-zero code: 1" in caught.value.message
    assert "    some noise" in caught.value.message
    assert engine.known["gpulab/base:latest"].id == first.id


def test_an_engine_that_is_gone_is_said_so(make):
    with pytest.raises(EngineUnavailable, match="connection refused"):
        make(FakeEngine(gone=True))


def test_only_the_last_twenty_lines_are_kept():
    with pytest.raises(BuildFailed) as caught:
        follow([{"stream": f"line {i}\n"} for i in range(30)] + [{"error": "no"}], print)
    assert "line 10\n" in caught.value.message
    assert "line 9\n" not in caught.value.message


def test_an_old_engines_word_for_the_image_is_understood():
    assert follow([{"stream": "Successfully built 0a1b2c3d4e5f\n"}], print) == "0a1b2c3d4e5f"


def test_a_build_that_ends_without_an_image_is_an_error():
    with pytest.raises(BuildFailed, match="ended the build without an image"):
        follow([{"stream": "Step 1/2 : FROM x\n"}], print)
