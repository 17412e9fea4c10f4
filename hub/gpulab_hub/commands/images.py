"""`gpulab images`: build, list and check the images of servers."""

from __future__ import annotations

import os
import sys
from typing import Any

import click
import docker
import docker.errors

from gpulab_hub.commands import emit, json_option, lab_command
from gpulab_hub.images.build import BASE, NAME, RECIPE, VERSION, build
from gpulab_hub.images.check import check
from gpulab_hub.images.recipes import fingerprint, read_recipe, recipe_names, recipes_directory
from gpulab_hub.images.site import Site, gather
from gpulab_hub.paths import LabPaths
from gpulab_hub.settings import Settings, load
from gpulab_spawner.errors import EngineUnavailable

MARKS = {"ok": "ok     ", "warning": "warning", "fault": "FAULT  "}


@click.group()
def images() -> None:
    """Build, list and check the images of servers."""


@images.command("build")
@click.argument("name", default="base")
@click.option(
    "--base", metavar="IMAGE", help="Image to build on: any Debian or Ubuntu with Python 3.11 to 3.13."
)
@click.option("--rebuild", is_flag=True, help="Build all of it anew, without Docker's cache.")
@lab_command
def build_command(paths: LabPaths, name: str, base: str | None, rebuild: bool) -> None:
    """Build the image NAME (base), unless it is there and nothing has changed."""
    built = build(
        name,
        connect(paths),
        site=gather(os.environ),
        cache=paths.state / "cache",
        say=lambda line: click.echo(f"  {line}"),
        base=base,
        rebuild=rebuild,
    )
    size = f"{built.size_bytes / 1e6:.0f} MB"
    click.echo(f"{built.reference} ({size}) {'was built' if built.fresh else 'is up to date'}")


@images.command("list")
@json_option
@lab_command
def list_command(paths: LabPaths, as_json: bool) -> None:
    """List the lab's images on this engine."""
    rows = listing(connect(paths), gather(os.environ, pip_list=""))
    if as_json:
        emit(rows)
        return
    if not rows:
        click.echo("There is no image of the lab yet: gpulab images build base")
    for row in rows:
        state = "" if row["current"] else "   older than its recipe: gpulab images build"
        size = f"{row['size_bytes'] / 1e6:6.0f} MB"
        click.echo(f"{row['image']:32} {size}   {row['built'][:10]}   on {row['base']}{state}")


@images.command("check")
@click.argument("image")
@json_option
@lab_command
def check_command(paths: LabPaths, image: str, as_json: bool) -> None:
    """Check that IMAGE has what a server of the lab needs."""
    from jupyterhub import __version__ as hub_version

    findings = check(connect(paths), image, hub_version)
    faults = sum(finding.level == "fault" for finding in findings)
    if as_json:
        emit({"image": image, "usable": not faults, "findings": [finding.as_json() for finding in findings]})
    else:
        for finding in findings:
            click.echo(f"{MARKS[finding.level]} {finding.point:12} {finding.says}")
            if finding.next_step:
                click.echo(f"{'':20} {finding.next_step}")
        click.echo(f"{image}: {'servers can run in it' if not faults else f'{faults} faults to mend first'}")
    sys.exit(1 if faults else 0)


def listing(client: docker.DockerClient, site: Site) -> list[dict[str, Any]]:
    """Return the images that this command built, newest first, one row for each reference."""
    directory = recipes_directory()
    wanted = {
        name: fingerprint({**read_recipe(name, directory), **site.trusted()})
        for name in recipe_names(directory)
    }
    rows = []
    for image in client.images.list(filters={"label": NAME}):
        for reference in sorted(image.tags):
            rows.append(
                {
                    "image": reference,
                    "id": image.id,
                    "size_bytes": image.attrs["Size"],
                    "built": str(image.attrs["Created"]),
                    "version": image.labels.get(VERSION),
                    "base": image.labels.get(BASE),
                    "current": image.labels.get(RECIPE) == wanted.get(image.labels[NAME]),
                }
            )
    return sorted(rows, key=lambda row: str(row["built"]), reverse=True)


def connect(paths: LabPaths) -> docker.DockerClient:
    """Return a client of the lab's engine.

    Raises:
        EngineUnavailable: It does not answer.
    """
    settings = load(paths.config) if paths.config.exists() else Settings()
    environment = dict(os.environ)
    if settings.engine.url:
        environment["DOCKER_HOST"] = settings.engine.url
    # A step of a build may be silent for long; an engine that is gone says so at once.
    try:
        client = docker.DockerClient.from_env(timeout=600, environment=environment)
        client.ping()
    except docker.errors.DockerException as error:
        raise EngineUnavailable(
            f"Docker does not answer: {error}",
            next_step="Start Docker, or name its socket in engine.url or DOCKER_HOST.",
        ) from error
    return client
