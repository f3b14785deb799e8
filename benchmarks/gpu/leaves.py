"""What sums in leaves cost one GPU: the two products of a layer that ranks could share, by rows, leaves and way.

    python benchmarks/gpu/leaves.py

Microseconds in a graph of many; every way is compared with the reference schedule first.
"""

from __future__ import annotations

import json
import statistics
from functools import partial
from typing import Any

import torch

from zerokl.ops.choices import Schedule, Shape, candidates, fallback, leaf_candidates
from zerokl.ops.shards import cut
from zerokl.ops.triton.admit import inputs, outcome, run
from zerokl.ops.triton.ways import forbid_split_k

ROWS = (1, 8, 16, 64, 256, 2048, 8192)
LAYERS = {"out": (4096, 4096, 128), "down": (12288, 4096, 16)}
"""K, N, the unit of a cut."""
ROUNDS = 20


def microseconds(launch: Any) -> float:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        launch()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin()
        for _ in range(ROUNDS):
            launch()
        graph.capture_end()
        graph.replay()
        times = []
        for _ in range(5):
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record(stream)
            graph.replay()
            stop.record(stream)
            stream.synchronize()
            times.append(start.elapsed_time(stop) * 1e3 / ROUNDS)
    return statistics.median(times)


def more_schedules(shape: Shape) -> list[Any]:
    """What else might be faster."""
    rows = 8 if shape.rows <= 8 else 16
    if shape.rows <= 16:
        return [
            Schedule(rows, 32, 256, True, 4, 2),
            Schedule(rows, 32, 128, True, 4, 4),
            Schedule(rows, 64, 128, True, 4, 3),
            Schedule(rows, 64, 256, True, 4, 2),
            Schedule(rows, 128, 128, True, 4, 2),
        ]
    return [
        Schedule(64, 32, 128, False, 4, 2),
        Schedule(64, 64, 128, True, 4, 2),
        Schedule(64, 64, 128, True, 4, 3),
        Schedule(64, 128, 64, False, 4, 3),
        Schedule(64, 128, 128, True, 4, 2),
        Schedule(128, 128, 64, False, 8, 3),
    ]


def main() -> None:
    forbid_split_k()
    for name, (depth, columns, unit) in LAYERS.items():
        for leaves in (1, 2, 8):
            ends = tuple(cut(depth, unit, leaves)[1:]) if leaves > 1 else ()
            kind = Shape(0, columns, depth, added=True, ends=ends)
            given = inputs(kind, max(ROWS), "cuda", "cancelling")
            for rows in ROWS:
                shape = kind._replace(rows=rows)
                ways = leaf_candidates(shape)[:-1] if ends else candidates(shape)[:1]
                ways += more_schedules(shape) if ends and rows <= 256 else []
                reference = (leaf_candidates(shape) if ends else [fallback(shape)])[-1]
                line: dict[str, Any] = {"layer": name, "leaves": leaves, "rows": rows}
                for way in ways:
                    try:
                        expected = outcome(reference, kind, given, rows)
                        equal = torch.equal(outcome(way, kind, given, rows), expected)
                        label = way if isinstance(way, str) else "x".join(str(int(part)) for part in way)
                        launch = partial(run, way, kind, given, rows)
                        line[label] = round(microseconds(launch), 2) if equal else "differs"
                        given.residual.normal_()
                    except Exception as error:  # noqa: BLE001 (a schedule that doesn't fit)
                        line[str(way)] = str(error)[:80]
                print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
