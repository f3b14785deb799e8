"""Many rows by FP8 weights in blocks of 128 x 128, at Qwen3-8B's shapes: bits and microseconds of each way, and cuBLAS.

    python benchmarks/gpu/blocks.py [--rows 8192] [--layers qkv out gate_up down]

In a captured graph. Prints one JSON line per layer: cuBLAS with the same numbers in bfloat16 (without the gate), what
unpacking takes, which each way includes, and the ways.
"""

from __future__ import annotations

import argparse
import json
from functools import partial

import torch

from zerokl.bench.kernels import graph_us
from zerokl.ops.choices import BLOCK_GROUPS, BLOCKS, LARGE, BlockGroups, Shape, Way, by_blocks, reference_of
from zerokl.ops.triton import admit
from zerokl.ops.triton.chain import empty
from zerokl.ops.triton.packed import unpacked
from zerokl.ops.triton.ways import forbid_split_k

LAYERS = {
    # name: columns, depth, gated, added
    "qkv": (6144, 4096, False, False),
    "out": (4096, 4096, False, True),
    "gate_up": (12288, 4096, True, False),
    "down": (4096, 12288, False, True),
}
WAYS: list[Way] = [*BLOCK_GROUPS, BlockGroups(2, 64, 4, 16), by_blocks(LARGE)]


def measured(layer: str, rows: int) -> dict[str, object]:
    columns, depth, gated, added = LAYERS[layer]
    kind = Shape(0, columns, depth, gated, False, added, False, form=BLOCKS)
    given = admit.inputs(kind, rows, "cuda", admit.KINDS[0])
    few = min(rows, 1000)
    expected = admit.outcome(reference_of(kind), kind, given, few)
    unequal = {way: admit.differing(admit.outcome(way, kind, given, few), expected) for way in WAYS}
    w = unpacked(given.w)
    y = empty(given.x, len(w))
    calls = {str(tuple(way)): partial(admit.run, way, kind, given, rows) for way in WAYS}
    calls |= {"cuBLAS": lambda: torch.mm(given.x, w.t(), out=y), "unpacking": lambda: unpacked(given.w)}
    found = {name: round(graph_us([call, call])) for name, call in calls.items()}
    return {"layer": layer, "rows": rows, "us": found, "differing": list(unequal.values())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", nargs="*", default=list(LAYERS))
    parser.add_argument("--rows", type=int, default=8192)
    given = parser.parse_args()
    forbid_split_k()
    for layer in given.layers:
        print(json.dumps(measured(layer, given.rows)), flush=True)


if __name__ == "__main__":
    main()
