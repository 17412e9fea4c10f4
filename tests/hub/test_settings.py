import re
from pathlib import Path

import pytest

from gpulab_hub.settings import Settings, parse, require_apart
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
        ("host: {memory_reserve: 2024-13-45}", "month must be in 1..12"),
        ("listen: {port: 1}\nlisten: {port: 2}", "line 2, column 1: the key listen is written twice"),
        ("5", "the file: it holds a number, not sections"),
        ("servers: {memory: 0}", "servers.memory: 0 is no limit"),
        ("servers: {memory: 0.0001K}", "servers.memory: '0.0001K' is no limit"),
        ("servers: {memory_guarantee: 5G}", "servers: memory_guarantee is above memory"),
        ("servers: {cpus: .inf}", "servers.cpus: inf is not accepted"),
        ("servers: {cpus: 0.001}", "servers.cpus: 0.001 is not accepted"),
        ("host: {snapshot_max_age_seconds: .inf}", "host.snapshot_max_age_seconds: inf is not accepted"),
        ("storage: {root: homes}", "storage.root: 'homes' is not the absolute path"),
        ("storage: {shared: [{name: a, path: /srv/../etc}]}", "'/srv/../etc' is not the absolute path"),
        ("storage: {shared: [{name: a, path: /}]}", "'/' is not the absolute path"),
        (
            "storage: {shared: [{name: a, path: /a}, {name: a, path: /b}]}",
            "storage.shared: two directories are named 'a'",
        ),
        ("listen: {public_url: lab.example.org}", "'lab.example.org' is not a web address; write https"),
        ("listen: {public_url: 'https://x/lab'}", "'https://x/lab' is not a web address"),
        (
            "time_zone: Mars/Base",
            "time_zone: this machine does not know the time zone 'Mars/Base'; write one like",
        ),
        ("time_zone: ../../etc/passwd", "does not know the time zone"),
        ("limits: {all: {gpus: 1}}", "limits: 'all' is none: write everyone, group:NAME or user:NAME"),
        ("limits: {everyone: {cards: 1}}", "limits: everyone cards: there is no limit 'cards'"),
        ("limits: {everyone: {gpus: true}}", "limits: everyone gpus: True is neither a number nor a text"),
        ("limits: {everyone: {hours.week: many}}", "limits: everyone hours.week: 'many' is not a number"),
        ("limits: {everyone: 1}", "limits.everyone"),
        ("engine: {injection: magic}", "engine.injection: 'magic' is not accepted"),
    ],
)
def test_a_wrong_setting_names_file_key_and_value(text, words):
    with pytest.raises(ConfigError) as caught:
        parse(text, "site.yaml")
    assert str(caught.value).startswith("site.yaml: ")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("shared", "other"),
    [
        ("[{name: a, path: /srv}]", "storage.root (/srv/homes)"),
        ("[{name: a, path: /srv/homes/a}]", "storage.root (/srv/homes)"),
        ("[{name: a, path: /data}, {name: b, path: /data/b}]", "the path of a (/data)"),
        ("[{name: b, path: /data/b}, {name: a, path: /data}]", "the path of b (/data/b)"),
        ("[{name: a, path: /var/lib/gpulab/x}]", "the lab's state directory (/var/lib/gpulab)"),
        ("[{name: a, path: /var/lib}]", "the lab's state directory (/var/lib/gpulab)"),
    ],
)
def test_a_shared_directory_within_another_is_refused(shared, other):
    settings = parse(f"storage: {{root: /srv/homes, shared: {shared}}}")
    with pytest.raises(ConfigError, match=rf"storage.shared.\d.path: .*{re.escape(other)} lie one within"):
        require_apart(settings, Path("/var/lib/gpulab"))


def test_shared_directories_beside_each_other_are_fine():
    shared = "[{name: a, path: /data/a}, {name: b, path: /data/ab}]"
    require_apart(parse(f"storage: {{root: /srv/homes, shared: {shared}}}"), Path("/var/lib/gpulab"))
