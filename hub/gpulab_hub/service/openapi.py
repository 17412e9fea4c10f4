"""openapi.json, made from the endpoints' table and the models: it cannot tell what the code does not do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

if TYPE_CHECKING:
    from gpulab_hub.service.api import Endpoint

_JSON = "application/json"
_REFERENCE = "#/components/schemas/{model}"


def document(endpoints: Sequence[Endpoint], problem: type[BaseModel], base: str) -> dict[str, object]:
    """Return the description of an API.

    Args:
        endpoints: What it has.
        problem: Model of every error.
        base: Address that the endpoints' paths are below.
    """
    models = {problem}
    for endpoint in endpoints:
        models |= {m for m in (endpoint.answers, endpoint.takes) if m is not None}
    ordered = sorted(models, key=lambda model: model.__name__)
    _, schemas = models_json_schema([(model, "serialization") for model in ordered], ref_template=_REFERENCE)
    paths: dict[str, dict[str, object]] = {}
    for endpoint in endpoints:
        paths.setdefault(f"/{endpoint.path}", {})[endpoint.method] = _operation(endpoint, problem)
    return {
        "openapi": "3.1.0",
        "info": {"title": "GPU Lab", "version": version("gpulab")},
        "servers": [{"url": base.rstrip("/")}],
        "paths": paths,
        "components": {
            "schemas": schemas.get("$defs", {}),
            "securitySchemes": {
                "token": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "Authorization",
                    "description": "token ...",
                }
            },
        },
    }


def _operation(endpoint: Endpoint, problem: type[BaseModel]) -> dict[str, object]:
    answer: dict[str, object] = {"description": endpoint.about}
    if endpoint.answers is not None:
        answer["content"] = _json(endpoint.answers, "text/event-stream" if endpoint.stream else _JSON)
    operation: dict[str, object] = {
        "summary": endpoint.about,
        "operationId": re.sub(r"\W+", "_", f"{endpoint.method}_{endpoint.path}").strip("_"),
        "security": [] if endpoint.public else [{"token": []}],
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in re.findall(r"{(\w+)}", endpoint.path)
        ]
        + [
            {"name": name, "in": "query", "required": False, "schema": {"type": "string"}}
            for name in endpoint.query
        ],
        "responses": {
            str(endpoint.status): answer,
            "default": {"description": "An error.", "content": _json(problem)},
        },
    }
    if endpoint.takes is not None:
        operation["requestBody"] = {"required": False, "content": _json(endpoint.takes)}
    return operation


def _json(model: type[BaseModel], kind: str = _JSON) -> dict[str, object]:
    return {kind: {"schema": {"$ref": _REFERENCE.format(model=model.__name__)}}}
