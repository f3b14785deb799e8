"""Why two threads may not be twice as fast: products of few rows beside what the machine reads in the same moment.

    .venv/bin/python benchmarks/kernels/two_threads.py [--rows 1 2 4 8] [--rounds 40] [--json result.json]

SmolLM2-135M's layers, thirty times over and apart in memory, and one layer that stays in the caches. In turns, a round
each: a plain read of 192 MB, the layers, the layer in the caches, with one thread and with two. Medians over rounds of
how many times faster two threads were; where the layers' ratio is the read's, memory decides, and the cached layer
tells what starting and ending a product on two threads costs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from zerokl import _native, ops

SHAPES = [(960, 576), (576, 576), (3072, 576), (576, 1536)]
LAYERS, AGAIN = 30, 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 2, 4, 8])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    works = dict(works_of(options.rows))
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
    for _ in range(options.rounds):
        for name, work in works.items():
            times[name].append((timed(work, 1), timed(work, 2)))
    report = {name: summary(pairs) for name, pairs in times.items()}
    for name, (one, two, ratio) in report.items():
        print(f"{name:24} {one * 1e3:8.3f} ms, with two threads {two * 1e3:8.3f}: {ratio:.2f} times as fast")
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")


def works_of(rows: list[int]) -> list[tuple[str, Callable[[], object]]]:
    random = np.random.default_rng(0)
    drawn = [random.integers(0x3C00, 0x4000, shape).astype(np.uint16) for shape in SHAPES]
    layers = [_native.pack([weight], "bfloat16", "bfloat16") for _ in range(LAYERS) for weight in drawn]
    data = random.standard_normal(48 << 20, np.float32)
    works: list[tuple[str, Callable[[], object]]] = [("read 192 MB", partial(_native.read_once, data))]
    for count in rows:
        x = {depth: random.standard_normal((count, depth), np.float32) for _, depth in SHAPES}
        works.append((f"30 layers, {count} rows", partial(products, layers, x)))
        works.append((f"one, cached, {count} rows", partial(products, layers[: len(SHAPES)] * AGAIN, x)))
    return works


def products(matrices: list[ops.Matrix], x: dict[int, Any]) -> None:
    for matrix in matrices:
        ops.linear(x[matrix.shape[1]], matrix)


def timed(work: Callable[[], object], threads: int) -> float:
    _native.set_threads(threads)
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def summary(pairs: list[tuple[float, float]]) -> tuple[float, float, float]:
    """Medians: of one thread, of two, of how many times faster two are than one in the same round."""
    ones, twos = zip(*pairs, strict=True)
    return statistics.median(ones), statistics.median(twos), statistics.median(one / two for one, two in pairs)


if __name__ == "__main__":
    main()
