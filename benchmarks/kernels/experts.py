"""A mixture of experts against a dense MLP with the same activated parameters, 512 tokens.

    python benchmarks/kernels/experts.py [threads]

With one thread the process's own time is taken, which a busy machine moves little. The two are run in turn; the least
of the rounds counts.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np

from zerokl import _native, ops

TOKENS, ROUNDS = 512, 9
SHAPES = ((1024, 256, 64, 8), (2048, 768, 128, 8), (1024, 1792, 8, 2))
"""(hidden size, width of an expert, experts, chosen): two of many narrow experts, one of few wide ones."""


def main() -> None:
    threads = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    _native.set_threads(threads)
    clock = time.process_time if threads == 1 else time.perf_counter
    for shape in SHAPES:
        calls = mixture_and_dense(*shape)
        seconds = [min(times) for times in zip(*(timed(calls, clock) for _ in range(ROUNDS)), strict=True)]
        sparse, dense = (1000 * second for second in seconds)
        print(f"{shape}: experts {sparse:.1f} ms, dense {dense:.1f} ms, {sparse / dense:.2f}x, {_native.isa()}")


def timed(calls: list[Callable[[], object]], clock: Callable[[], float]) -> list[float]:
    found = []
    for call in calls:
        start = clock()
        call()
        found.append(clock() - start)
    return found


def mixture_and_dense(hidden: int, width: int, count: int, top: int) -> list[Callable[[], object]]:
    random = np.random.default_rng(0)

    def weight(rows: int, columns: int) -> ops.AnyMatrix:
        values = random.standard_normal((rows, columns)) / np.sqrt(columns)
        return ops.pack(values.astype(np.float32), "bfloat16")

    x = random.standard_normal((TOKENS, hidden)).astype(np.float32)
    first, second = ([weight(*shape) for _ in range(count)] for shape in ((2 * width, hidden), (hidden, width)))
    wide, narrow, router = weight(2 * width * top, hidden), weight(hidden, width * top), weight(count, hidden)

    def sparse() -> object:
        chosen, weights = ops.route(ops.linear(x, router), top)
        return ops.experts(x, first, second, chosen, weights, residual=x)

    return [sparse, lambda: ops.linear(ops.gated_linear(x, wide), narrow, residual=x)]


if __name__ == "__main__":
    main()
