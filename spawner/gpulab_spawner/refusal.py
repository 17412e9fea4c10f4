"""A refusal on its way through JupyterHub.

The hub shows a failed spawn in five places and each reads another attribute: the REST answer and the log take
`message`, the HTTP reason and the metric label take `reason`, the form and the spawn-pending page take only
`jupyterhub_message` and `jupyterhub_html_message`, and the progress stream takes those two or the exception's
text. `SpawnRefused` fills all of them from one `Refusal`, so that a person reads the same words everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from html import escape

from jupyterhub.spawner import SpawnException

from gpulab_spawner.errors import Refusal


class SpawnRefused(SpawnException):  # type: ignore[misc]  # jupyterhub ships no types
    """A refusal as the exception that JupyterHub relays to the user.

    Args:
        refusal: What was refused; kept as `refusal`.
    """

    def __init__(self, refusal: Refusal) -> None:
        words = refusal.sentence()
        super().__init__(
            words,
            reason=refusal.code,
            message_html=refusal_html(refusal),
            status_code=refusal.status,
        )
        self.refusal = refusal
        self.jupyterhub_message = words
        self.jupyterhub_html_message = self.message_html


def refusal_html(refusal: Refusal) -> str:
    """Return the refusal as HTML without block elements, since the hub puts it inside a paragraph."""
    parts = [f"<strong>{escape(refusal.message)}</strong>"]
    if refusal.next_step:
        parts.append(f"<span>{escape(refusal.next_step)}</span>")
    parts.append(f"<code>{escape(refusal.code)}</code>")
    return f'<span class="lab-refusal">{" ".join(parts)}</span>'


@contextmanager
def refused_to_the_hub() -> Iterator[None]:
    """Let a Refusal leave the block as the SpawnRefused that the hub understands."""
    try:
        yield
    except Refusal as refusal:
        raise SpawnRefused(refusal) from refusal
