"""What one case has compared and seen; and the watch that proves that its event happened."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from zerokl.check.ledger import Comparison
from zerokl.check.logs import Lines
from zerokl.check.targets.base import Counters


@dataclass(slots=True)
class Tally:
    """What one case has compared and seen so far."""

    name: str
    answers: int = 0
    values: int = 0
    positions: int = 0
    differing: int = 0
    comparisons: list[Comparison] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    """Why the case is not a pass even if nothing differed."""
    log: Lines = field(default_factory=Lines)
    """What the server's log said meanwhile."""
    fatal: bool = False
    """The server is gone or the budget spent: no later case can run."""

    def event(self, words: str) -> None:
        if words not in self.events:
            self.events.append(words)

    def fail(self, words: str) -> None:
        if words not in self.failures:
            self.failures.append(words)


@dataclass(slots=True)
class Span:
    """The time between a stream's first and last token, as the client saw it."""

    first: float = 0.0
    last: float = 0.0

    def timing(self, on_token: Callable[[int], None]) -> Callable[[int], None]:
        """on_token, and a look at the clock."""

        def timed(tokens: int) -> None:
            self.last = time.monotonic()
            self.first = self.first or self.last
            on_token(tokens)

        return timed


class Watch:
    """A stretch of requests: the server's counters around it, or at least the spans of its streams."""

    def __init__(self, tally: Tally, *, counting: bool, widest: int = 10_000) -> None:
        self._tally = tally
        self._widest = widest
        self._counting = counting
        self.counted = Counters()
        self.spans: list[Span] = []

    def expect_width(self, width: int, steps: int) -> None:
        """`steps` steps or more decoded exactly `width` requests, or as many as the server runs at a time."""
        width = min(width, self._widest)
        if not self._counting:
            self.expect_overlap(width)
            return
        seen = self.counted.widths.get(width, 0)
        wide = max(self.counted.widths, default=0)
        words = f"{seen} steps of width {width}, expected {steps} or more; the widest was {wide}"
        self._judge(seen >= steps, f"decode steps of width {width}", words)

    def expect_overlap(self, width: int) -> None:
        """`width` or more requests were being decoded at one time."""
        width = min(width, self._widest)
        if self._counting:
            wide = max(self.counted.widths, default=0)
            self._judge(
                wide >= width, f"decode steps of width {width} or more", f"the widest step was {wide}, not {width}"
            )
        else:
            open_at_once = most_open(self.spans)
            self._judge(
                open_at_once >= width,
                f"{width} streams open at once, by the times of their tokens",
                f"only {open_at_once} of {width} streams were open at once, and the server doesn't count widths",
            )

    def expect_some(self, name: str, value: int | None) -> None:
        """A count that must have grown, on servers that count."""
        if self._counting:
            self._judge(bool(value), name, f"no {name} was counted")

    def _judge(self, happened: bool, event: str, otherwise: str) -> None:
        if happened:
            self._tally.event(event)
        else:
            self._tally.fail(otherwise)


def most_open(spans: Sequence[Span]) -> int:
    """How many spans hold one common moment."""
    edges = sorted(
        [(span.first, 1) for span in spans if span.first] + [(span.last, -1) for span in spans if span.first]
    )
    count = most = 0
    for _, step in edges:
        count += step
        most = max(most, count)
    return most
