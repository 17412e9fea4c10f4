"""What the subcommands of `gpulab` share: the lab they speak of, `--json`, and how errors end.

Exit codes: 0 done; 1 refused, or found wrong; 2 wrong usage (click's own).
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpulab_hub.paths import DEFAULT_STATE, LabPaths
from gpulab_spawner.errors import LabError

if TYPE_CHECKING:
    from sqlalchemy import Engine

Command = Callable[..., Any]


def lab_command(function: Command) -> Command:
    """Give a command `--state`, hand it a `LabPaths` first, and word its LabErrors on stderr (exit 1)."""

    @click.option(
        "--state",
        type=click.Path(file_okay=False, path_type=Path),
        envvar="GPULAB_STATE",
        default=DEFAULT_STATE,
        show_default=True,
        help="State directory of the lab.",
    )
    @functools.wraps(function)
    def run(state: Path, *args: Any, **kwargs: Any) -> Any:
        try:
            return function(LabPaths(state.absolute()), *args, **kwargs)
        except LabError as error:
            if kwargs.get("as_json"):
                emit(error.as_json())
            click.echo(f"gpulab: {error}", err=True)
            sys.exit(1)
        except BrokenPipeError:
            # The reader went away (`gpulab devices | head`): nothing is wrong.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(0)

    return run


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def open_database(paths: LabPaths) -> Engine:
    """Open the lab's database until the running command ends."""
    from gpulab_hub.database import lab_database

    engine = lab_database(paths)
    click.get_current_context().call_on_close(engine.dispose)
    return engine


def emit(value: object) -> None:
    """Print a value as indented JSON."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))
