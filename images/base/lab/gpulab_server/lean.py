"""Start without the imports that a user's server never uses.

A single-user server needs five things of JupyterHub: its extension, its OAuth client, its log function, its
scope arithmetic and its HTTP client. Importing these also loads the hub's request handlers, its database
models, SQLAlchemy and Alembic, because the same modules serve the hub. And `jsonschema` loads an optional
check of international URIs whose grammar takes longer to compile than all of Jupyter takes to load.

`standing_in` puts small stand-ins in `sys.modules` while those imports run, and takes them out again: code
that imports the real modules later (an extension with a database of its own, say) gets the real ones. What
keeps this honest:

- It happens for one release of JupyterHub only (`PINNED`); any other starts the ordinary way, slower.
- A stand-in of the hub's side answers the names that are asked of it during import and nothing else. Its
  first real use raises `StandInUsed` with the name, so a change in JupyterHub shows in the tests, not in
  wrong behaviour.
- A library that is only late (`LATE`) answers everything, by loading the real one when it is first asked.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

PINNED = "6.1.1"
"""The release of JupyterHub that the stand-ins were checked against."""


class StandInUsed(RuntimeError):
    """Something that was left out at start was used after all.

    Args:
        name: Dotted name that was used.
    """

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} was left out of this server at start; with GPULAB_START=stock nothing is")


class _LeftOut(ModuleType):
    """A module of the hub's side: few names, and an error for any other."""

    def __init__(self, name: str, content: Mapping[str, object]) -> None:
        super().__init__(name)
        # The import system looks for submodules only below a module that has a path.
        self.__path__: list[str] = []
        self.__dict__.update(content)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise StandInUsed(f"{self.__name__}.{name}")


class _Late(ModuleType):
    """A library that is loaded when something is first asked of it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(import_module(self.__name__), name)


class _NeverRaised(Exception):
    """Stands in for SQLAlchemyError in `except` clauses of code that talks to the hub's database."""


class _NeverMade:
    """Stands in for the hub's HealthCheckHandler, whose successes the log function leaves out."""


async def _fetch(url: str, **options: Any) -> Any:
    """Load JupyterHub's HTTP client, and aiohttp with it, at the first request."""
    from jupyterhub.httpclient import fetch

    return await fetch(url, **options)


LEFT_OUT: Mapping[str, Mapping[str, object]] = {
    # jupyterhub.scopes and jupyterhub.metrics name them inside functions that only the hub calls.
    "jupyterhub.orm": {},
    "jupyterhub.roles": {},
    # jupyterhub.log asks for one class, for an isinstance check that no handler of a user's server passes.
    "jupyterhub.handlers": {},
    "jupyterhub.handlers.pages": {"HealthCheckHandler": _NeverMade},
    # jupyterhub.utils asks for one exception class; jupyterhub.scopes names the package as above.
    "sqlalchemy": {},
    "sqlalchemy.exc": {"SQLAlchemyError": _NeverRaised},
    # The server does use this one: the same function, which loads the real module at its first call.
    "jupyterhub.httpclient": {"fetch": _fetch},
}
"""What the imports of a user's server name of the hub's side: module to the names that it answers."""

LATE = ("aiohttp", "requests")
"""Libraries that JupyterHub's and JupyterLab's modules import at their top and use in a few functions."""

ABSENT = ("rfc3987", "rfc3987_syntax")
"""Optional modules that count as not installed: jsonschema then leaves the formats `iri` and `iri-reference`
unchecked. No schema of Jupyter's events or settings uses these."""


def is_pinned() -> bool:
    """Return whether the installed JupyterHub is the release that the stand-ins were checked against."""
    if find_spec("jupyterhub") is None:
        return False
    # Not importlib.metadata: it parses every installed package's name, which costs as much as Tornado.
    from jupyterhub._version import __version__

    return bool(__version__ == PINNED)


@contextmanager
def standing_in() -> Iterator[None]:
    """Let imports inside the block find stand-ins for `LEFT_OUT` and `LATE`, and nothing for `ABSENT`.

    A module that is loaded already stays as it is. Afterwards every stand-in is gone from `sys.modules`.
    """
    placed: dict[str, ModuleType | None] = dict.fromkeys(ABSENT)
    placed |= {name: _Late(name) for name in LATE}
    placed |= {name: _LeftOut(name, content) for name, content in LEFT_OUT.items()}
    placed = {name: module for name, module in placed.items() if name not in sys.modules}
    # None is how the import system is told that a module is not there.
    sys.modules.update(placed)  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name, module in placed.items():
            if name in sys.modules and sys.modules[name] is module:
                del sys.modules[name]
