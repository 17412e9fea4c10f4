"""A Docker Engine that knows images and builds, with failures that have names."""

from __future__ import annotations

from types import SimpleNamespace

import docker.errors
import requests.exceptions


class Image:
    def __init__(self, engine, id, labels, config=None):  # noqa: A002
        self.engine, self.id, self.labels = engine, id, labels
        self.attrs = {"Size": 700_000_000, "Created": "2026-01-02T03:04:05Z", "Config": config or {}}

    @property
    def tags(self):
        return [reference for reference, image in self.engine.known.items() if image is self]

    def tag(self, repository, tag):
        self.engine.known[f"{repository}:{tag}"] = self


class FakeEngine:
    """An engine.

    Args:
        offline: No pull succeeds.
        fails: Text of the error that every build ends with.
        gone: Nothing answers.
    """

    def __init__(self, *, offline=False, fails=None, gone=False):
        self.offline, self.fails, self.gone = offline, fails, gone
        self.known = {}
        self.builds = []
        self.pulled = []
        self.images = self
        self.api = SimpleNamespace(build=self.build)

    def get(self, reference):
        if self.gone:
            raise requests.exceptions.ConnectionError("connection refused")
        for name, image in self.known.items():
            if reference in (name, image.id):
                return image
        raise docker.errors.ImageNotFound(f"No such image: {reference}")

    def list(self, filters):
        ours = {image.id: image for image in self.known.values() if filters["label"] in image.labels}
        return [*ours.values()]

    def pull(self, reference):
        if self.offline:
            raise docker.errors.APIError("500", explanation="no such host")
        self.pulled.append(reference)
        self.known[reference] = Image(self, reference, {})

    def build(self, **options):
        self.builds.append(options)
        yield {"stream": "Step 1/9 : RUN echo gpulab: not this\n"}
        yield {"stream": "gpulab: installing\nsome noise\n"}
        if self.fails:
            yield {"error": self.fails, "errorDetail": {"message": self.fails}}
            return
        image = Image(self, f"sha256:{len(self.builds):064x}", options["labels"])
        self.known[f"<none>:{image.id}"] = image
        yield {"aux": {"ID": image.id}}
        yield {"stream": f"Successfully built {image.id[7:19]}\n"}
