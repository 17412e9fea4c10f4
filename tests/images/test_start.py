import pytest

from gpulab_server.start import Refused, decide

HUB = {"JUPYTERHUB_SERVICE_URL": "http://0.0.0.0:8888/user/ada/"}


def test_with_a_hub_it_is_the_users_server():
    start = decide(["--debug"], HUB, 200_001)
    assert (start.kind, start.arguments, start.lean) == ("hub", ("--debug",), True)


def test_without_a_hub_it_is_a_jupyterlab_that_keeps_its_token():
    start = decide(["--debug"], {}, 1000)
    assert start.kind == "alone"
    assert "--ServerApp.ip=0.0.0.0" in start.arguments
    assert start.arguments[-1] == "--debug"
    assert not any("token" in argument for argument in start.arguments)


def test_a_command_is_run_as_it_stands():
    assert decide(["python", "-V"], HUB, 0).arguments == ("python", "-V")
    assert decide(["python", "-V"], HUB, 0).kind == "command"


@pytest.mark.parametrize("environ", [{}, HUB])
def test_jupyter_does_not_run_as_root(environ):
    with pytest.raises(Refused, match="leave out --user 0"):
        decide([], environ, 0)


def test_the_stock_start_can_be_asked_for():
    assert not decide([], HUB | {"GPULAB_START": "stock"}, 1000).lean


def test_help_needs_nothing():
    assert decide(["--help"], {}, 0).kind == "help"
