"""Bits and speed of the CPU kernels by instruction set and number of threads, on whatever machine this is.

    python benchmarks/kernels/scaling.py [--threads 1 2 4 8 16] [--json result.json]

Needs the installed package and no model: weights are one layer of SmolLM2-135M thirty times over, and one of an 8B
model three times, all apart in memory, so that nothing is cached that wouldn't be in a real step. First every result of
every instruction set and thread count is compared bit by bit; one that differs ends the program with status 1. Then
each is timed.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from zerokl import _native, ops
from zerokl.bench.ceilings import ceilings

SHAPES = {
    "135M": (30, [(960, 576), (576, 576), (3072, 576), (576, 1536)]),
    "8B": (3, [(6144, 4096), (4096, 4096), (24576, 4096), (4096, 12288)]),
}
ROWS = (1, 2, 4, 8, 16, 64, 512)
KEYS = (512, 8192)
PAGE, HEADS, KV_HEADS, SIZE = 64, 9, 3, 64

Work = Callable[[], list[np.ndarray]]


def main() -> None:
    options = arguments()
    models = {name: model(*shape) for name, shape in SHAPES.items() if name in options.models}
    works = dict(works_of(models))
    check(works, options.threads)
    report: dict[str, dict[str, float]] = {}
    for isa, threads in ((isa, threads) for isa in _native.isas() if isa != "scalar" for threads in options.threads):
        use(isa, threads)
        limits = ceilings(3)
        row = {"read GB/s": limits.read_gb_per_s, "GFLOP/s": limits.gflop_per_s}
        row |= {name: best(work) for name, (work, _) in works.items()}
        report[f"{isa} x {threads}"] = row
        print(f"{isa} x {threads}: {limits.read_gb_per_s:.0f} GB/s, {limits.gflop_per_s:.0f} GFLOP/s")
        for name, (_, (num_bytes, flops)) in works.items():
            share = limits.seconds(num_bytes, flops) / row[name]
            print(f"  {name:28} {row[name] * 1e3:9.3f} ms, {100 * share:5.1f} % of the ceiling")
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="*", default=sorted({1, 2, _native.threads()}))
    parser.add_argument("--models", nargs="*", default=list(SHAPES))
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def use(isa: str, threads: int) -> None:
    _native.set_isa(isa)
    _native.set_threads(threads)


def model(copies: int, shapes: list[tuple[int, int]]) -> list[ops.Matrix]:
    random = np.random.default_rng(0)
    drawn = [random.integers(0x3C00, 0x4000, shape).astype(np.uint16) for shape in shapes]
    return [_native.pack([weight], "bfloat16", "bfloat16") for _ in range(copies) for weight in drawn]


def works_of(models: dict[str, list[ops.Matrix]]) -> Iterator[tuple[str, tuple[Work, tuple[float, float]]]]:
    """(name, (what to run, (bytes it reads, operations)))."""
    for (name, matrices), rows in itertools.product(models.items(), ROWS):
        if name == "8B" and rows > 64:
            continue
        num_bytes = sum(matrix.nbytes for matrix in matrices)
        flops = 2.0 * rows * sum(matrix.shape[0] * matrix.shape[1] for matrix in matrices)
        yield f"{name}: linear, {rows} rows", (linear(matrices, rows), (num_bytes, flops))
    for keys, dtype in itertools.product(KEYS, ("float32", "bfloat16")):
        width = 4 if dtype == "float32" else 2
        sizes = (2.0 * keys * KV_HEADS * SIZE * width, 4.0 * keys * HEADS * SIZE)
        yield f"attention at {keys}, {dtype}", (attention(keys, dtype), sizes)


def linear(matrices: list[ops.Matrix], rows: int) -> Work:
    random = np.random.default_rng(rows)
    depths = {matrix.shape[1] for matrix in matrices}
    x = {depth: random.standard_normal((rows, depth), np.float32) for depth in depths}
    return lambda: [ops.linear(x[matrix.shape[1]], matrix) for matrix in matrices]


def stored(array: np.ndarray, dtype: str) -> np.ndarray:
    """As the cache keeps it; bfloat16 as its words."""
    return (array.view(np.uint32) >> 16).astype(np.uint16) if dtype == "bfloat16" else array


def attention(keys: int, dtype: str) -> Work:
    random = np.random.default_rng(keys)
    pages = -(-keys // PAGE)
    order = random.permutation(pages).astype(np.int32)
    tails = ((SIZE, PAGE), (PAGE, SIZE))
    k, v = (stored(random.standard_normal((pages, KV_HEADS, *tail), np.float32), dtype) for tail in tails)
    position = np.array([keys - 1], np.int32)
    ragged = ops.Ragged(position, position, np.array([0, 1], np.int32), order[None], PAGE)
    q = random.standard_normal((1, HEADS, SIZE), np.float32)
    return lambda: [ops.attention(q, ops.LayerKV(k, v, ragged), SIZE**-0.5)]


def check(works: dict[str, tuple[Work, tuple[float, float]]], threads: list[int]) -> None:
    expected: dict[str, str] = {}
    for isa, count in itertools.product(_native.isas(), threads):
        use(isa, count)
        for name, (work, _) in works.items():
            if isa == "scalar" and ("8B" in name or "512 rows" in name):
                continue
            digest = hashlib.sha256(b"".join(array.tobytes() for array in work())).hexdigest()
            if expected.setdefault(name, digest) != digest:
                print(f"{name}: {isa} with {count} threads has other bits")
                sys.exit(1)
    print(f"{len(expected)} results are equal, bit by bit: {', '.join(_native.isas())}; {threads} threads")


def best(work: Work, seconds: float = 1.0) -> float:
    times: list[float] = []
    while len(times) < 3 or sum(times) < seconds:
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


if __name__ == "__main__":
    main()
