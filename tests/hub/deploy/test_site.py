from pathlib import Path

import pytest

from gpulab_hub.deploy import site
from gpulab_hub.deploy.options import Options
from gpulab_hub.settings import Settings, load
from gpulab_spawner.errors import ConfigError

TEMPLATE = Path(__file__).parents[3] / "config/gpulab.yaml"


def options(tmp_path, **flags):
    return Options(state=tmp_path, source=TEMPLATE.parents[1], **flags)


def test_the_first_file_holds_what_the_flags_say(tmp_path):
    asked = options(tmp_path, port=8123, listen="0.0.0.0")
    config = tmp_path / "gpulab.yaml"
    assert site.read(config, TEMPLATE, asked).listen.port == 8123
    assert not config.exists()
    site.ensure(config, TEMPLATE, asked)
    assert (load(config).listen.address, load(config).listen.port) == ("0.0.0.0", 8123)
    assert config.stat().st_mode & 0o777 == 0o640


def test_without_flags_it_holds_the_defaults(tmp_path):
    site.ensure(tmp_path / "gpulab.yaml", TEMPLATE, options(tmp_path))
    assert load(tmp_path / "gpulab.yaml") == Settings()


def test_an_admins_file_is_never_overwritten(tmp_path):
    config = tmp_path / "gpulab.yaml"
    config.write_text("name: Ours\n")
    assert "yours" in site.ensure(config, TEMPLATE, options(tmp_path))
    assert config.read_text() == "name: Ours\n"


def test_flags_that_contradict_the_file_are_refused(tmp_path):
    config = tmp_path / "gpulab.yaml"
    config.write_text("listen: {port: 8123}\n")
    assert site.read(config, TEMPLATE, options(tmp_path, port=8123)).listen.port == 8123
    with pytest.raises(ConfigError, match=r"listen.port: it is 8123 there, and --port says 9000"):
        site.read(config, TEMPLATE, options(tmp_path, port=9000))
    with pytest.raises(
        ConfigError, match=r"listen.address: it is 127.0.0.1 there, and --listen says 0.0.0.0"
    ):
        site.read(config, TEMPLATE, options(tmp_path, listen="0.0.0.0"))


def test_a_broken_file_is_refused_with_its_line(tmp_path):
    config = tmp_path / "gpulab.yaml"
    config.write_text("listen: [\n")
    with pytest.raises(ConfigError, match=r"line 2"):
        site.read(config, TEMPLATE, options(tmp_path))
