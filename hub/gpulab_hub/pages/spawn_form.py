"""The form of the spawn page, for Spawner.options_form.

The hub puts the returned text into its page as it is, so this module's environment escapes everything, and
names of profiles and words of offers never reach it any other way.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from gpulab_hub.accounting.allowance import Allow, Allowance, unlimited
from gpulab_hub.pages.assets import TEMPLATES
from gpulab_hub.pages.reading import SharedReading
from gpulab_hub.pages.spawn_page import SpawnView, spawn_view
from gpulab_spawner.errors import LabError
from gpulab_spawner.profiles import Catalogue

log = logging.getLogger(__name__)

OptionsForm = Callable[[Any], Awaitable[str]]

LastChoice = Callable[[str, str], object]
"""Return the user_options of the last start of a user's server, None if there was none. Blocking.

They are the ledger's, not the hub's: what the hub keeps it also reuses for a request without options.
"""


LastEnd = Callable[[str, str], str]
"""Return how a user's server ended where that came over them, in words, else "". Blocking."""


def spawn_form(
    reading: SharedReading,
    catalogue: Catalogue,
    last_choice: LastChoice,
    last_end: LastEnd = lambda user, server: "",
    clock: Callable[[], float] = time.time,
    allow: Allow = unlimited,
) -> OptionsForm:
    """Return the closure for `c.Spawner.options_form`."""

    async def options_form(spawner: Any) -> str:
        lab, allowance, last, end = await asyncio.gather(
            reading.current(),
            allowed(allow, spawner.user),
            asyncio.to_thread(last_choice, spawner.user.name, spawner.name),
            asyncio.to_thread(last_end, spawner.user.name, spawner.name),
        )
        return render(spawn_view(catalogue, lab, last, clock(), end, allowance))

    return options_form


async def allowed(allow: Allow, user: Any) -> Allowance | None:
    """Return what a hub user is allowed; where that cannot be read the page comes without it."""
    groups = tuple(group.name for group in user.groups)
    try:
        return await asyncio.to_thread(allow, user.name, groups)
    except LabError as error:
        log.warning("What %s is allowed could not be read: %s", user.name, error)
        return None


def render(view: SpawnView) -> str:
    """Return the form's inside as HTML."""
    return _environment().get_template("spawn_form.html").render(view=view)


@cache
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
