"""The server's own log, read while the cases run: how many requests were decoded together, what was prefilled, whether
by a graph. Evidence only: a log decides nothing, since servers write a line now and then, not for each step.

    SGLang   Decode batch, #running-req: 8, #token: 512, ..., cuda graph: True   --decode-log-interval 1: each step
    SGLang   Prefill batch, #new-seq: 1, #new-token: 512, #cached-token: 64, ...
    vLLM     Engine 000: ..., Running: 8 reqs, Waiting: 0 reqs, ...                     every ten seconds
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from zerokl.check.outcome import CouldNotRun

RUNNING = re.compile(r"Decode batch[.,].*?#running-req: (\d+)|Running: (\d+) reqs")
PREFILLED = re.compile(r"Prefill batch[.,].*?#new-token: (\d+)")
GRAPH = re.compile(r"Decode batch[.,].*?cuda graph: (True|False)")


@dataclass(slots=True)
class Lines:
    """What the lines of a stretch of time say."""

    running: Counter[int] = field(default_factory=Counter)
    """Requests decoded together -> lines that say so."""
    prefilled: Counter[int] = field(default_factory=Counter)
    """New tokens of a prefill step -> lines."""
    graphs: Counter[str] = field(default_factory=Counter)

    def add(self, line: str) -> None:
        if found := RUNNING.search(line):
            width = int(found[1] or found[2])
            self.running[width] += width > 0
        if found := PREFILLED.search(line):
            self.prefilled[int(found[1])] += 1
        if found := GRAPH.search(line):
            self.graphs["with a graph" if found[1] == "True" else "without a graph"] += 1

    def __add__(self, other: Lines) -> Lines:
        return Lines(self.running + other.running, self.prefilled + other.prefilled, self.graphs + other.graphs)

    def describe(self) -> str:
        """In one line; empty if nothing was said."""
        parts = []
        if running := +self.running:
            parts.append(f"{_range(running)} requests running")
        if self.prefilled:
            parts.append(f"prefills of {_range(self.prefilled)} tokens")
        parts += [f"{count} steps {how}" for how, count in sorted(self.graphs.items())]
        return ", ".join(parts)


class Log:
    """A file that a server appends to. Only what comes after this object was made is read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._offset = path.stat().st_size
        except OSError as error:
            raise CouldNotRun(f"--log {path}: {error.strerror}") from error
        self._rest = b""

    def news(self) -> Lines:
        """The whole lines since the last call. A file that became shorter was begun anew."""
        size = self._path.stat().st_size if self._path.exists() else 0
        if size < self._offset:
            self._offset, self._rest = 0, b""
        if size == self._offset:
            return Lines()
        with self._path.open("rb") as file:
            file.seek(self._offset)
            content = self._rest + file.read()
            self._offset = file.tell()
        *whole, self._rest = content.split(b"\n")
        return read(line.decode(errors="replace") for line in whole)


def read(lines: Iterable[str]) -> Lines:
    found = Lines()
    for line in lines:
        found.add(line)
    return found


def _range(counts: Counter[int]) -> str:
    low, high = min(counts), max(counts)
    return str(low) if low == high else f"{low} to {high}"
