"""The operations of a step on the CPU, each held against what the machine could do at most.

An operation must read its weights or its keys and values once, and compute; the time of the slower of the two at the
machine's measured ceilings is its floor. Weights are read from copies that together are larger than the caches, as a
step finds them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, product

import numpy as np

from zerokl import ops
from zerokl.bench.ceilings import Ceilings, best
from zerokl.ops.kv import F32
from zerokl.runner.kv import NUMPY, lazy_array
from zerokl.types import LogprobSpec

PAST_THE_CACHES = 192 << 20
PAGE = 64
CONTEXTS = (1024, 8192)
PROMPTS = (512, 2048)
HEAD_ROWS = 64
"""Logits of more rows are never wanted at once in a decode."""
REPEATS = 9


@dataclass(frozen=True, slots=True)
class Point:
    """One operation at one size."""

    operation: str
    size: str
    num_bytes: int
    """Read at least: weights, or keys and values."""
    flops: int
    seconds: float
    """Of the fastest call."""
    floor: float
    """Seconds at the ceilings."""

    @property
    def gb_per_s(self) -> float:
        return self.num_bytes / self.seconds / 1e9

    @property
    def gflop_per_s(self) -> float:
        return self.flops / self.seconds / 1e9

    @property
    def reached(self) -> float:
        """Part of what the machine could do."""
        return self.floor / self.seconds


def measured(axes: Mapping[str, int], dtype: str, rows: Sequence[int], ceilings: Ceilings) -> Iterator[Point]:
    """The operations of a plain decoder with these axes (E, F, H, K, D, V), point by point."""
    E, F, H, K, D, V = (axes[letter] for letter in "EFHKDV")
    layers = {"qkv": ((H + 2 * K) * D, E), "out": (E, H * D), "gate_up": (2 * F, E), "down": (E, F), "head": (V, E)}
    for name, shape in layers.items():
        counts = [count for count in rows if name != "head" or count <= HEAD_ROWS]
        yield from linear_points(name, shape, dtype, counts, ceilings)
    for context, kind in product(CONTEXTS, ("float32", "bfloat16")):
        yield attention_point(1, context, (H, K, D), kind, ceilings)
    for length in PROMPTS:
        yield attention_point(length, length, (H, K, D), "float32", ceilings)
    for count in (1, 16):
        yield score_point(count, V, ceilings)


def linear_points(
    name: str, shape: tuple[int, int], dtype: str, rows: Sequence[int], ceilings: Ceilings
) -> Iterator[Point]:
    random = np.random.default_rng(0)
    values = random.standard_normal(shape, np.float32) / np.float32(np.sqrt(shape[1]))
    first = ops.pack(values, dtype)
    copies = [first, *(ops.pack(values, dtype) for _ in range(PAST_THE_CACHES // first.nbytes))]
    turns = cycle(copies)
    operation = ops.gated_linear if name == "gate_up" else ops.linear
    for count in rows:
        x = random.standard_normal((count, shape[1]), np.float32)
        size = f"{count} x {shape[1]} x {shape[0]}"
        call = partial(on_the_next, operation, x, turns)
        yield point(name, size, first.nbytes, 2 * count * values.size, call, ceilings)


def on_the_next(operation: Callable[[F32, ops.AnyMatrix], F32], x: F32, weights: Iterator[ops.AnyMatrix]) -> F32:
    return operation(x, next(weights))


def attention_point(rows: int, context: int, heads: tuple[int, int, int], dtype: str, ceilings: Ceilings) -> Point:
    """The last `rows` positions of one sequence, keys and values where the engine would have them."""
    H, K, D = heads
    pages, width = context // PAGE, np.dtype(NUMPY[dtype]).itemsize
    num_bytes = 2 * width * context * K * D
    copies = min(256, 2 + PAST_THE_CACHES // num_bytes)
    random = np.random.default_rng(0)
    k, v = (lazy_array((pages * copies, K, *tail), NUMPY[dtype]) for tail in ((D, PAGE), (PAGE, D)))
    for pool in (k, v):
        pool[...] = 1 if width == 4 else 0x3F80  # the bits of a bfloat16
    q = random.standard_normal((rows, H, D), np.float32)
    positions = np.arange(context - rows, context, dtype=np.int32)
    tables = cycle(np.arange(pages * copies, dtype=np.int32).reshape(copies, 1, pages))
    starts, nowhere = np.asarray([0, rows], np.int32), np.full(rows, -1, np.int32)

    def call() -> object:
        kv = ops.LayerKV(k, v, ops.Ragged(positions, nowhere, starts, next(tables), PAGE))
        return ops.attention(q, kv, D**-0.5)

    seen = int(positions.sum()) + rows
    return point("attention", f"{rows} at {context}, {dtype}", num_bytes, 4 * seen * H * D, call, ceilings)


def score_point(rows: int, vocabulary: int, ceilings: Ceilings) -> Point:
    logits = np.random.default_rng(0).standard_normal((rows, vocabulary), np.float32)
    targets, spec = np.zeros(rows, np.int32), LogprobSpec(5)
    call = partial(ops.score, logits, targets, spec)
    # A maximum, and a power of two, which counts as one operation.
    return point("log-softmax", f"{rows} x {vocabulary}", logits.nbytes, 2 * logits.size, call, ceilings)


def point(
    operation: str, size: str, num_bytes: int, flops: int, call: Callable[[], object], ceilings: Ceilings
) -> Point:
    call()
    return Point(operation, size, num_bytes, flops, best(call, REPEATS), ceilings.seconds(num_bytes, flops))
