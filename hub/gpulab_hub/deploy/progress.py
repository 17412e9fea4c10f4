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


class Words(list[str]):
    """What a step found or did, for its line.

    Args:
        out: Where a long step says how far it is.
    """

    def __init__(self, out: TextIO) -> None:
        super().__init__()
        self._out = out

    def say(self, text: str) -> None:
        """Say how far a long step is, on the step's line."""
        print(f"{text} ...", end="\n" + " " * (_TITLE + 2), file=self._out, flush=True)


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
    def step(self, title: str) -> Iterator[Words]:
        """Print a step's title, run the body, then print the words that the body left."""
        print(f"  {title:<{_TITLE}}", end="", file=self.out, flush=True)
        began = self.clock()
        words = Words(self.out)
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
