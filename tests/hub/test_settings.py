import pytest

from gpulab_hub.settings import Settings, parse
from gpulab_spawner.errors import ConfigError


def test_an_empty_file_gives_the_defaults():
    assert parse("") == Settings()


def test_sizes_are_read_with_their_unit():
    assert parse("servers: {memory: 1.5G}").servers.memory == 3 * 2**29


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("listen: [", "line 1"),
        ("a: b: c", "line 1, column 5"),
        ("- a", "it holds a list"),
        ("listn: {}", "listn: there is no such setting"),
        ("listen: {prot: 1}", "listen.prot: there is no such setting. Known here: address, port, public_url"),
        ("listen: {port: -1}", "listen.port: -1 is not accepted"),
        ("listen: {port: '80'}", "listen.port: '80' is not accepted"),
        ("servers: {memory: lots}", "'lots' is not a size"),
        ("servers: {memory: -4}", "-4 is not a size"),
        ("storage: {shared: [{name: UP, path: /x}]}", "storage.shared.0.name: 'UP' is not accepted"),
        ("storage: {shared: [{nam: up}]}", "there is no such setting"),
        ("engine: {injection: magic}", "engine.injection: 'magic' is not accepted"),
    ],
)
def test_a_wrong_setting_names_file_key_and_value(text, words):
    with pytest.raises(ConfigError) as caught:
        parse(text, "site.yaml")
    assert str(caught.value).startswith("site.yaml: ")
    assert words in str(caught.value)
