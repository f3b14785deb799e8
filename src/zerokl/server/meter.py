"""What the frontend measures of requests, for /metrics: how many, how long, how they ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from zerokl.server.exposition import Counter, Histogram
from zerokl.wire.records import Record

TOKEN_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0)
REQUEST_BOUNDS_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)


@dataclass(slots=True)
class Meter:
    """Belongs to one event loop. A request here is a sequence: one prompt and one of its samples."""

    started: int = 0
    finished: Counter = field(default_factory=Counter)
    """By finished_reason."""
    answers: Counter = field(default_factory=Counter)
    """HTTP answers, by path and status."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generation_tokens: int = 0
    first_token_s: Histogram = field(default_factory=lambda: Histogram(REQUEST_BOUNDS_S))
    """Of streams: what isn't streamed comes all at once."""
    between_tokens_s: Histogram = field(default_factory=lambda: Histogram(TOKEN_BOUNDS_S))
    request_s: Histogram = field(default_factory=lambda: Histogram(REQUEST_BOUNDS_S))
    clock: Callable[[], float] = time.monotonic
    listener: Callable[[Trip], None] = lambda trip: None
    """Hears of each request's end, in the request's own context."""

    def begin(self, streams: bool) -> Trip:
        """A request is taken in; show its records to what this gives."""
        self.started += 1
        return Trip(self, streams, self.clock())


@dataclass(slots=True)
class Trip:
    """One request from its admission on."""

    meter: Meter
    streams: bool
    began: float
    heard: float | None = None
    """When the last token came."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    first_token_s: float | None = None
    """Only of streams."""
    reason: str = ""
    """How it ended; empty: it hasn't."""

    def take(self, record: Record) -> None:
        meter = self.meter
        now = meter.clock()
        if record.first is not None:
            self.prompt_tokens, self.cached_tokens = record.first.prompt_tokens, record.first.cached_tokens
            meter.prompt_tokens += self.prompt_tokens
            meter.cached_tokens += self.cached_tokens
        if record.tokens:
            self.completion_tokens += len(record.tokens)
            meter.generation_tokens += len(record.tokens)
            if self.streams:
                self._time_tokens(len(record.tokens), now)
        if record.done is not None:
            meter.request_s.observe(now - self.began)
            self._end("error" if record.done.status is not None else record.done.kind)

    def leave(self) -> None:
        """Nobody wants its records any more; nothing happens if its last has come."""
        if not self.reason:
            self._end("abort")

    def _time_tokens(self, count: int, now: float) -> None:
        if self.heard is None:
            self.first_token_s = now - self.began
            self.meter.first_token_s.observe(self.first_token_s)
        else:
            self.meter.between_tokens_s.observe((now - self.heard) / count, count)
        self.heard = now

    def _end(self, reason: str) -> None:
        self.reason = reason
        self.meter.finished.add(finished_reason=reason)
        self.meter.listener(self)
