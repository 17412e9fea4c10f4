"""Progress of `deploy/up` in plain words: one line a step, with what was found or done and its seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TextIO

_TITLE = 24
SHOWN_SECONDS = 1.0
"""A step below this shows no time: it is noise on a second run."""


@dataclass
class Progress:
    """Prints steps.

    Attributes:
        out: Where to.
        clock: Monotonic seconds.
    """

    out: TextIO
    clock: Callable[[], float] = field(default=time.monotonic)

    @contextmanager
    def step(self, title: str) -> Iterator[list[str]]:
        """Print a step's title, run the body, then print the words that the body put into the list."""
        print(f"  {title:<{_TITLE}}", end="", file=self.out, flush=True)
        began = self.clock()
        words: list[str] = []
        try:
            yield words
        except BaseException:
            print("failed", file=self.out, flush=True)
            raise
        seconds = self.clock() - began
        took = f" ({seconds:.0f} s)" if seconds >= SHOWN_SECONDS else ""
        print("; ".join(words or ["done"]) + took, file=self.out, flush=True)

    def say(self, text: str = "") -> None:
        """Print a line."""
        print(text, file=self.out, flush=True)
