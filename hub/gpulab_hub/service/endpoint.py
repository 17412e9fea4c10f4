"""How an endpoint of the REST API is told, and where all of them are."""

from __future__ import annotations

from dataclasses import dataclass

from gpulab_hub.service.wire import Model

PREFIX = "/services/gpulab/"
API = f"{PREFIX}api/v1/"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method of one address, as openapi.json tells it.

    Attributes:
        method: HTTP method.
        path: Address below the API's, with {names}.
        about: What it does, in a sentence.
        answers: Model of its answer, None for an empty one.
        status: Status of its answer.
        takes: Model of the request's body, if it has one.
        public: Whether it answers to everybody.
        query: What may follow the `?`, by name.
        stream: Whether it answers with server-sent events whose data are its model.
    """

    method: str
    path: str
    about: str
    answers: type[Model] | None
    status: int = 200
    takes: type[Model] | None = None
    public: bool = False
    query: tuple[str, ...] = ()
    stream: bool = False
