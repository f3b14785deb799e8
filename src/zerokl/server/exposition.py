"""Prometheus' text format 0.0.4, in a fixed order of names, so that both frontends write it alike."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Labels = tuple[tuple[str, str], ...]
Number = int | float


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: its name, and its samples as (suffix, labels, value)."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    samples: Sequence[tuple[str, Labels, Number]]


@dataclass(slots=True)
class Counter:
    """Counts by label values."""

    values: dict[Labels, int] = field(default_factory=dict)

    def add(self, count: int = 1, **labels: str) -> None:
        key = tuple(sorted(labels.items())) if len(labels) > 1 else tuple(labels.items())
        self.values[key] = self.values.get(key, 0) + count

    def samples(self) -> list[tuple[str, Labels, Number]]:
        return [("", labels, value) for labels, value in sorted(self.values.items())]


class Histogram:
    """Counts of observations up to each bound."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = list(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def samples(self) -> list[tuple[str, Labels, Number]]:
        bounds = [*map(number, self._bounds), "+Inf"]
        below = list(accumulate(self._counts))
        buckets = [("_bucket", (("le", bound),), count) for bound, count in zip(bounds, below, strict=True)]
        return [*buckets, ("_count", (), below[-1]), ("_sum", (), self._sum)]


def exposition(families: Iterable[Family], labels: Mapping[str, str]) -> bytes:
    """All of them, sorted by name; `labels` go on every sample."""
    common = tuple(labels.items())
    lines = (line for family in sorted(families, key=lambda one: one.name) for line in _lines(family, common))
    return "".join(f"{line}\n" for line in lines).encode()


def _lines(family: Family, common: Labels) -> Iterator[str]:
    yield f"# HELP {family.name} {family.help}"
    yield f"# TYPE {family.name} {family.kind}"
    for suffix, labels, value in family.samples:
        written = ",".join(f'{key}="{escaped(text)}"' for key, text in (*common, *labels))
        yield f"{family.name}{suffix}{{{written}}} {number(value)}"


def escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def number(value: Number) -> str:
    return repr(value) if isinstance(value, int) else repr(float(value))
