"""One row with packed weights, at Qwen3-8B's shapes: bits against the reference schedule, and microseconds of each way.

    python benchmarks/gpu/one_row.py [--forms nvfp4 fp8] [--layers qkv out gate_up down] [--leaves 8]

In a captured graph, weights rotated past the L2 cache. Prints one JSON line per layer: the time that reading it takes,
the kernel of few rows, and the ways, fastest first. With leaves: of out and down, whose sums ranks could share.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from functools import partial

from zerokl.bench.kernels import graph_us
from zerokl.ops.choices import OneRow, Packed, Relay, Shape, WarpRow, Way, candidates, reference_of
from zerokl.ops.shards import cut
from zerokl.ops.triton import admit
from zerokl.ops.triton.ways import forbid_split_k

LAYERS = {
    # name: columns, depth, gated, added
    "qkv": (6144, 4096, False, False),
    "out": (4096, 4096, False, True),
    "gate_up": (12288, 4096, True, False),
    "down": (4096, 12288, False, True),
}
WAYS = {
    "nvfp4": [(4, 8, 2, 2), (4, 8, 3, 2), (4, 4, 6, 2), (4, 8, 3), (4, 8, 4), (4, 4, 6)],
    "fp8": [(4, 4, 3), (4, 4, 4), (4, 4, 7), (4, 8, 3), (2, 8, 3), (4, 4, 4, 2)],
}
RELAYS = [(2, 1), (2, 2), (3, 2)]
WARPS = {
    "nvfp4": [(1, 2, 3), (1, 2, 4), (1, 4, 3), (2, 2, 4), (2, 4, 3), (2, 8, 2)],
    "fp8": [(1, 2, 4), (2, 2, 3), (2, 2, 4), (2, 4, 3)],
}
BANDWIDTH = 4.3e6
"""Bytes a microsecond."""
L2 = 200_000_000


def measured(form: str, layer: str, leaves: int) -> dict[str, object]:
    columns, depth, gated, added = LAYERS[layer]
    ends = tuple(cut(depth, 128, leaves)[1:]) if added and leaves > 1 else ()
    kind = Shape(0, columns, depth, gated, False, added, False, ends, form)
    given = admit.inputs(kind, 1, "cuda", admit.KINDS[0])
    expected = admit.outcome(reference_of(kind), kind, given, 1)
    weight = given.w
    copies = [admit.inputs(kind, 1, "cuda", admit.KINDS[0], seed=seed).w for seed in range(max(2, L2 // weight.nbytes))]
    ways: list[Way] = [WarpRow(*numbers) for numbers in WARPS[form] if gated or ends]
    if not ends:
        ways += [way for way in candidates(kind._replace(rows=1)) if isinstance(way, Packed)]
        ways += [OneRow(*numbers) for numbers in WAYS[form] if numbers[0] == 4 or not gated]
        ways += [Relay(*numbers) for numbers in RELAYS if not gated and columns // 16 % numbers[0] == 0]
    # A residual takes what is added to it, so all are compared before the first is timed.
    unequal = {way: admit.differing(admit.outcome(way, kind, given, 1), expected) for way in ways}
    found = {}
    for way, differing in unequal.items():
        calls = [partial(admit.run, way, kind, replace(given, w=copy), 1) for copy in copies]
        found[str(tuple(way))] = (round(graph_us(calls), 1), differing)
    fastest = dict(sorted(found.items(), key=lambda item: item[1]))
    return {"form": form, "layer": layer, "reading": round(weight.nbytes / BANDWIDTH, 1), "us, differing": fastest}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--forms", nargs="*", default=list(WAYS))
    parser.add_argument("--layers", nargs="*", default=list(LAYERS))
    parser.add_argument("--leaves", type=int, default=1)
    given = parser.parse_args()
    forbid_split_k()
    for form in given.forms:
        for layer in given.layers:
            print(json.dumps(measured(form, layer, given.leaves)), flush=True)


if __name__ == "__main__":
    main()
