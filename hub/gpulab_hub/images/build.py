"""Build an image on a Docker Engine, of any age, from a recipe.

The engine's classic builder is used: every engine has it, and it needs no plugin. Builds run on the host's
network, because a lab's engine may have no network of its own for them and because a proxy or a package
mirror may listen on the host's loopback.
"""

from __future__ import annotations

import io
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import docker
import docker.errors
import requests.exceptions

from gpulab_hub.images.failures import LINES, BuildFailed, tail
from gpulab_hub.images.recipes import Context, fingerprint, pack, read_recipe, recipes_directory
from gpulab_hub.images.root import ensure_root, root_reference
from gpulab_hub.images.site import Site
from gpulab_spawner.errors import EngineUnavailable

PULLED_BASE = "debian:bookworm-slim"
NAME, VERSION, RECIPE, BASE = (
    "gpulab.image",
    "gpulab.image.version",
    "gpulab.image.recipe",
    "gpulab.image.base",
)
"""Labels of the images that we build."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Built:
    """An image on the engine.

    Attributes:
        reference: Reference with the lab's version, such as `gpulab/base:0.1.0`.
        id: Id of the image.
        size_bytes: Size of all its layers.
        fresh: Whether it was built just now; False if the one that was there is the same.
    """

    reference: str
    id: str
    size_bytes: int
    fresh: bool


def build(
    name: str,
    client: docker.DockerClient,
    *,
    site: Site,
    cache: Path,
    say: Say,
    base: str | None = None,
    rebuild: bool = False,
    recipes: Path | None = None,
) -> Built:
    """Return the image of a recipe, built unless the engine has it as it should be.

    Args:
        name: Name of the recipe.
        client: The engine.
        site: This machine's certificates, proxies and pip settings.
        cache: Directory for a base system that had to be made.
        say: Takes a line of progress in plain words.
        base: Image to build on; None takes one that is there, one that can be pulled, or makes one.
        rebuild: Build all of it anew, without the engine's cache.
        recipes: Directory of recipes; None takes the lab's own.

    Raises:
        ConfigError: There is no such recipe.
        BuildFailed: It does not build; the last lines say why, and the images are as before.
        EngineUnavailable: The engine does not answer.
    """
    context: dict[str, Any] = {**read_recipe(name, recipes or recipes_directory()), **site.trusted()}
    labels = {NAME: name, VERSION: version("gpulab"), RECIPE: fingerprint(context)}
    reference = f"gpulab/{name}:{labels[VERSION]}"
    try:
        if not rebuild and (there := _current(client, reference, labels, base)):
            return there
        labels[BASE] = _base(client, base, cache, say, rebuild)
        image = _run(client, {**context, **site.secret()}, labels, site.proxies, rebuild, say)
        for tag in (labels[VERSION], "latest"):
            image.tag(f"gpulab/{name}", tag)
    except requests.exceptions.RequestException as error:
        raise EngineUnavailable(
            f"Docker does not answer: {error}", next_step="Start Docker, then run this again."
        ) from error
    return Built(reference, str(image.id), int(image.attrs["Size"]), fresh=True)


def _current(
    client: docker.DockerClient, reference: str, labels: Mapping[str, str], base: str | None
) -> Built | None:
    """Return the image that is there if it is what would be built."""
    try:
        image = client.images.get(reference)
    except docker.errors.ImageNotFound:
        return None
    wanted = {**labels, BASE: base or image.labels.get(BASE, "")}
    if any(image.labels.get(key) != value for key, value in wanted.items()):
        return None
    image.tag(reference.rpartition(":")[0], "latest")
    return Built(reference, str(image.id), int(image.attrs["Size"]), fresh=False)


def _base(client: docker.DockerClient, base: str | None, cache: Path, say: Say, rebuild: bool) -> str:
    """Return the reference of a base image that the engine has.

    One that was made before is used again: the engine's cache holds for it, and asking a registry takes long
    where none can be reached.
    """
    made = root_reference()
    if not base and not rebuild and _has(client, made):
        return made
    for candidate in [base] if base else [PULLED_BASE]:
        if _has(client, candidate):
            return candidate
        try:
            say(f"pulling {candidate}")
            client.images.pull(candidate)
        except docker.errors.APIError as error:
            if base:
                raise BuildFailed(
                    f"The base image {base} is not on this engine and cannot be pulled: {error.explanation}",
                    next_step="Check its name, pull or load it on this machine, or leave out --base.",
                ) from error
            say("no base image can be pulled here")
        else:
            return candidate
    return ensure_root(client, cache, say, rebuild)


def _has(client: docker.DockerClient, reference: str) -> bool:
    try:
        client.images.get(reference)
    except docker.errors.ImageNotFound:
        return False
    return True


def _run(
    client: docker.DockerClient,
    context: Context,
    labels: Mapping[str, str],
    proxies: Mapping[str, str],
    rebuild: bool,
    say: Say,
) -> Any:
    stream = client.api.build(
        fileobj=io.BytesIO(pack(context)),
        custom_context=True,
        buildargs={"BASE": labels[BASE], **proxies},
        labels=dict(labels),
        network_mode="host",
        nocache=rebuild,
        rm=True,
        forcerm=True,
        decode=True,
    )
    return client.images.get(follow(stream, say))


def follow(stream: Iterable[Mapping[str, Any]], say: Say) -> str:
    """Read a build's output to its end and return the id of the image.

    Lines that start with `gpulab: ` are the recipe's own words for what it does; these are said.

    Raises:
        BuildFailed: The build failed; the message ends with its last lines.
    """
    last: deque[str] = deque(maxlen=LINES)
    made = ""
    for part in stream:
        for line in str(part.get("stream", "")).splitlines():
            if line.startswith("gpulab: "):
                say(line.removeprefix("gpulab: "))
            elif line.strip():
                last.append(line)
        made = str((part.get("aux") or {}).get("ID") or made)
        found = re.match(r"Successfully built ([0-9a-f]+)", str(part.get("stream", "")))
        made = made or (found.group(1) if found else "")
        if "error" in part:
            raise BuildFailed(
                f"The build stopped: {str(part['error']).strip()}\n{tail(list(last))}",
                next_step="Mend what the last lines say and run it again: finished steps are not repeated.",
            )
    if not made:
        raise BuildFailed(
            f"The engine ended the build without an image.\n{tail(list(last))}",
            next_step="Look at Docker's log.",
        )
    return made
