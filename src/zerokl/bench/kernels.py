"""Every way to compute a model's linear layers on this GPU: admitted or not, how fast, and the library's own choice.

`default` is the library (cuBLAS) as torch calls it untouched: it may split K, which is what an engine without promises
uses. Its bits are compared as well, so the table shows which of its choices would have been rejected. Ours adds to a
residual, gates, or leaves float32 where a step needs that; `default` is the product alone, and `same_work` is the
library doing the same as ours. Times are microseconds inside a captured graph, weights rotated past the L2 cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from zerokl.ops.choices import LIBRARY, REFERENCE, Schedule, Shape, Way, candidates
from zerokl.ops.triton import admit
from zerokl.ops.triton.admit import Inputs, differing, inputs, outcome
from zerokl.ops.triton.ways import forbid_split_k

MOST_HEAD_ROWS = 256
"""More rows of logits are made slice by slice."""
MOST_US = 1500
"""Of short calls in one graph."""


@dataclass(frozen=True, slots=True)
class Line:
    """One layer at one number of rows."""

    layer: str
    shape: Shape
    ways: dict[str, tuple[float, int]]
    """Way -> (microseconds, outputs with other bits than the reference schedule's)."""
    default: tuple[float, int]
    same_work: float
    """Microseconds of the library by its own choice, with all that the layer's product does."""

    @property
    def chosen(self) -> str:
        """The first that is admitted: candidates come in the order in which admission tries them."""
        return next(way for way, (_, differ) in self.ways.items() if not differ)

    @property
    def ratio(self) -> float:
        """How many times faster than the library's own choice."""
        return self.default[0] / self.ways[self.chosen][0]


def layers_of(axes: dict[str, int]) -> dict[str, Shape]:
    """The matrix products of a plain decoder of these sizes."""
    E, F, H, K, D, V = (axes[letter] for letter in "EFHKDV")
    return {
        "qkv": Shape(0, (H + 2 * K) * D, E),
        "out": Shape(0, E, H * D, added=True),
        "gate_up": Shape(0, F, E, gated=True),
        "down": Shape(0, E, F, added=True),
        "head": Shape(0, V, E, wide=True),
    }


def measured(layers: dict[str, Shape], rows: Sequence[int]) -> Iterator[Line]:
    """The table, line by line."""
    for name, kind in layers.items():
        counts = [count for count in rows if not kind.wide or count <= MOST_HEAD_ROWS]
        given = inputs(kind, max(counts), "cuda", admit.KINDS[0])
        expected = outcome(REFERENCE, kind, given, max(counts))
        weights = [given.w, *(given.w.clone() for _ in range(max(1, min(6, 120_000_000 // given.w.nbytes))))]
        for count in counts:
            shape = kind._replace(rows=count)
            ways = [way for way in dict.fromkeys(candidates(shape)) if is_sane(way, count)]
            found = {name_of(way): timed(way, kind, given, weights, expected, count) for way in ways}
            alone, same = untouched(kind, given, weights, count)
            # The chip gets hot: the chosen way and the library take turns, twice each, and the better one counts.
            chosen = next(way for way in ways if not found[name_of(way)][1])
            again = timed(chosen, kind, given, weights, expected, count)
            found[name_of(chosen)] = min(found[name_of(chosen)], again)
            alone, same = map(min, zip((alone, same), untouched(kind, given, weights, count), strict=True))
            yield Line(name, shape, found, (alone, untouched_differ(kind, given, count)), same)


def is_sane(way: Way, rows: int) -> bool:
    """The reference schedule, which is there to be right, takes too long for many rows."""
    return not isinstance(way, Schedule) or way != REFERENCE or rows <= MOST_HEAD_ROWS


def timed(way: Way, kind: Shape, given: Inputs, weights: list[Any], expected: Any, rows: int) -> tuple[float, int]:
    """As a step calls it: a residual's rows, which are added to in their place, are not copied first."""
    differ = differing(outcome(way, kind, given, rows), expected[:rows])
    residual = given.residual.clone() if kind.added else None
    calls = [partial(admit.run, way, kind, Inputs(given.x, w, None, residual), rows) for w in weights]
    return graph_us(calls), differ


@contextmanager
def library_untouched() -> Iterator[None]:
    torch.backends.cuda.preferred_blas_library("cublas")
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True
    try:
        yield
    finally:
        forbid_split_k()


def untouched(kind: Shape, given: Inputs, weights: list[Any], rows: int) -> tuple[float, float]:
    """Microseconds of the library by its own heuristics: the product alone, and with what comes after it."""
    x = given.x[:rows]
    residual = given.residual.clone() if kind.added else None
    with library_untouched():
        return graph_us([partial(torch.mm, x, w.t()) for w in weights]), graph_us(
            [partial(admit.run, LIBRARY, kind, Inputs(given.x, w, None, residual), rows) for w in weights]
        )


def untouched_differ(kind: Shape, given: Inputs, rows: int) -> int:
    """In how many sums."""
    x = given.x[:rows]
    with library_untouched():
        raw = torch.mm(x, given.w.t(), out_dtype=torch.float32)
    plain = Shape(rows, len(given.w), kind.depth, wide=True)
    step = 2048  # the reference's float32 products of all rows at once may not fit
    return sum(
        differing(raw[i : i + step], outcome(REFERENCE, plain, Inputs(x[i : i + step], given.w, None, None), step))
        for i in range(0, rows, step)
    )


def name_of(way: Way) -> str:
    return way if isinstance(way, str) else f"{type(way).__name__.lower()} {' '.join(str(int(x)) for x in way)}"


def graph_us(calls: Sequence[Callable[[], Any]]) -> float:
    """Microseconds per call, in a captured graph of them all; the best of three times two replays of it.

    Short calls are captured several times over, so that the gap between two replays is not in what they seem to take.
    """
    for call in calls[:2]:
        call()
    once = replayed(calls[:1], 1)
    graph_of = list(calls) * max(1, min(20, round(MOST_US / (once * len(calls)))))
    return replayed(graph_of, 3)


def replayed(calls: Sequence[Callable[[], Any]], times: int) -> float:
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    graph.replay()
    graph.replay()
    best = float("inf")
    for _ in range(times):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        best = min(best, begin.elapsed_time(end) / 2 / len(calls) * 1000)
    return best
