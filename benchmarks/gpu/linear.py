"""Every way to compute the linear layers of Qwen3-8B: admitted or not, how fast, and cuBLAS's own choice.

    python benchmarks/gpu/linear.py [--rows 1 8 16 ...] [--kinds cancelling gaussian wide subnormal]

`default` is torch.mm with its heuristics untouched, so with split-K where it likes: what an engine without promises
uses. Microseconds inside a captured graph, weights rotated past the L2. One JSON line per shape and number of rows;
`differing` counts outputs with other bits than the reference schedule, over the kinds of inputs.
"""

from __future__ import annotations

import argparse
import json
from functools import partial

import torch
from attention import graph_us

from zerokl.ops.triton import admit
from zerokl.ops.triton.admit import differing, inputs, outcome
from zerokl.ops.triton.choices import LIBRARY, REFERENCE, Schedule, Shape, candidates
from zerokl.ops.triton.ways import forbid_split_k

LAYERS = {
    "qkv": Shape(0, 6144, 4096),
    "out": Shape(0, 4096, 4096, added=True),
    "gate_up": Shape(0, 12288, 4096, gated=True),
    "down": Shape(0, 4096, 12288, added=True),
    "head": Shape(0, 151936, 4096, wide=True),
}
ROWS = (1, 8, 16, 32, 48, 64, 96, 128, 256, 512, 2048, 8192)
MORE = (
    Schedule(64, 128, 64, False, 4, 4),
    Schedule(128, 128, 64, False, 8, 3),
    Schedule(128, 256, 64, False, 8, 3),
    Schedule(128, 128, 64, True, 4, 4),
)
SMALL = (
    *(Schedule(8, *one) for one in [(16, 256, True, 1, 4), (32, 256, True, 2, 4), (32, 512, True, 4, 3)]),
    *(Schedule(8, *one) for one in [(64, 128, True, 2, 5), (64, 128, True, 4, 5), (64, 256, True, 4, 3)]),
    *(Schedule(16, *one) for one in [(32, 256, False, 2, 4), (64, 128, True, 4, 5), (64, 128, False, 4, 5)]),
    *(Schedule(16, *one) for one in [(32, 256, True, 4, 4), (64, 64, True, 2, 6)]),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="*", default=ROWS)
    parser.add_argument("--layers", nargs="*", default=list(LAYERS))
    parser.add_argument("--kinds", nargs="*", default=["cancelling"], choices=admit.KINDS)
    given = parser.parse_args()
    for name in given.layers:
        kind = LAYERS[name]
        rows = [count for count in given.rows if name != "head" or count <= 256]
        operands = {how: inputs(kind, max(rows), "cuda", how) for how in given.kinds}
        expected = {how: outcome(REFERENCE, kind, one, max(rows)) for how, one in operands.items()}
        first = operands[given.kinds[0]]
        copies = max(1, min(6, 120_000_000 // first.w.nbytes))
        weights = [first.w] + [first.w.clone() for _ in range(copies)]
        for count in rows:
            shape = kind._replace(rows=count)
            ways = dict.fromkeys([*candidates(shape), *(MORE if count >= 48 else SMALL if count <= 16 else ())])
            if 8 <= count <= 64:
                ways |= {LIBRARY: None}
            line = {"layer": name, "rows": count, "default": round(default_us(first, weights, count, kind), 1)}
            for way in ways:
                if (way == REFERENCE and count > 256) or (isinstance(way, Schedule) and way.rows < min(count, 16)):
                    continue
                bad = sum(
                    differing(outcome(way, kind, operands[how], count), expected[how][:count]) for how in operands
                )
                calls = [
                    partial(outcome, way, kind, admit.Inputs(first.x, w, None, first.residual), count) for w in weights
                ]
                line[str(way) if isinstance(way, str) else str(tuple(way))] = [round(graph_us(calls), 1), bad]
            print(json.dumps(line), flush=True)


def default_us(given: admit.Inputs, weights: list, rows: int, kind: Shape) -> float:
    """cuBLAS as torch calls it; what comes after the product (gate, residual) isn't counted."""
    torch.backends.cuda.preferred_blas_library("cublas")
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True
    x = given.x[:rows]
    took = graph_us([partial(torch.mm, x, w.t()) for w in weights])
    forbid_split_k()
    return took


if __name__ == "__main__":
    main()
