from gpulab_hub.images.site import gather, pip_settings, proxies

LIST = """:env:.cert='/etc/ssl/certs/ca-certificates.crt'
:env:.find-links='/opt/wheels'
global.extra-index-url='file:///opt/more/simple https://u:secret@b.example/simple'
global.index-url='https://global.example/simple'
install.index-url='https://install.example/simple'
global.trusted-host='a.example b.example'
nonsense
global.index-url
"""


def test_pips_index_settings_are_taken_over_and_this_machines_files_are_not():
    assert pip_settings(LIST) == {
        "index-url": ("https://install.example/simple",),
        "extra-index-url": ("https://u:secret@b.example/simple",),
        "trusted-host": ("a.example", "b.example"),
    }


def test_the_environment_wins_as_it_does_in_pip():
    assert pip_settings(LIST + ":env:.index-url='https://env.example/simple'\n")["index-url"] == (
        "https://env.example/simple",
    )


def test_a_machine_that_sets_nothing_adds_nothing(tmp_path):
    site = gather({}, tmp_path, "")
    assert (site.trusted(), site.secret(), site.proxies) == ({}, {}, {})


def test_what_holds_passwords_is_apart_from_what_ends_up_in_the_image(tmp_path):
    (tmp_path / "lab.crt").write_bytes(b"PEM")
    (tmp_path / "notes.txt").write_bytes(b"not for the image")
    site = gather({}, tmp_path, LIST)
    assert set(site.trusted()) == {"site/ca/lab.crt"}
    assert site.secret()["site/pip.conf"].content.decode().splitlines() == [
        "[global]",
        "index-url =",
        "    https://install.example/simple",
        "extra-index-url =",
        "    https://u:secret@b.example/simple",
        "trusted-host =",
        "    a.example",
        "    b.example",
    ]


def test_proxies_are_given_in_both_spellings():
    given = {"HTTPS_PROXY": "http://p:1", "no_proxy": "a", "NO_PROXY": "b", "http_proxy": ""}
    assert proxies(given) == {
        "https_proxy": "http://p:1",
        "HTTPS_PROXY": "http://p:1",
        "no_proxy": "a",
        "NO_PROXY": "a",
    }


def test_this_machines_pip_is_asked():
    assert isinstance(gather({}).pip, dict)
