import subprocess
import sys

import pytest
from jupyterhub import __version__

from gpulab_server import lean


def python(code):
    """Run code in a fresh interpreter and return what it prints."""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_the_stand_ins_are_for_the_jupyterhub_that_is_installed():
    # A newer JupyterHub starts without them, slower. Check LEFT_OUT against its imports, then move PINNED.
    assert __version__ == lean.PINNED


IMPORT = """
import sys
from gpulab_server import lean
with lean.standing_in():
    import gpulab_server.server, jupyterlab.labapp
"""


def test_a_server_loads_none_of_the_hubs_side():
    hub = "alembic sqlalchemy jupyterhub.orm jupyterhub.handlers jupyterhub.app jupyterhub.spawner"
    left_out = [*hub.split(), "rfc3987_syntax", "lark", "aiohttp", "requests"]
    assert python(f"{IMPORT}\nprint(*[name for name in {left_out!r} if name in sys.modules])") == ""


def test_afterwards_the_real_modules_are_there_for_whoever_wants_them():
    code = f"""{IMPORT}
import sqlalchemy, sqlalchemy.exc, jupyterhub.orm, jupyterhub.handlers.pages, rfc3987_syntax, aiohttp
print(sqlalchemy.create_engine, jupyterhub.orm.User, aiohttp.ClientSession is not None)
"""
    assert python(code).endswith("True")


def test_the_left_out_side_says_its_name_when_it_is_used():
    code = f"""{IMPORT}
import jupyterhub.scopes
try:
    jupyterhub.scopes.orm.User
except lean.StandInUsed as error:
    print(error)
"""
    assert python(code).startswith("jupyterhub.orm.User was left out")


def test_a_late_library_is_the_real_one_when_it_is_asked():
    code = f"""{IMPORT}
import jupyterhub.utils
print(jupyterhub.utils.aiohttp.ClientError.__module__)
"""
    assert python(code) == "aiohttp.client_exceptions"


def test_what_is_loaded_already_stays(monkeypatch):
    real = sys.modules["jupyterhub"]
    monkeypatch.setattr(lean, "LEFT_OUT", {"jupyterhub": {}, "not.there": {"x": 1}})
    with lean.standing_in():
        assert sys.modules["jupyterhub"] is real
        assert sys.modules["not.there"].x == 1
        with pytest.raises(lean.StandInUsed):
            sys.modules["not.there"].y  # noqa: B018
    assert "not.there" not in sys.modules
    assert sys.modules["jupyterhub"] is real


def test_they_are_taken_out_after_a_failed_import_too():
    with pytest.raises(ZeroDivisionError), lean.standing_in():
        raise ZeroDivisionError
    assert "jupyterhub.handlers.pages" not in sys.modules or not isinstance(
        sys.modules["jupyterhub.handlers.pages"], lean._LeftOut
    )
