"""The search behind `zerokl tune`: ways for few rows, timed inside graphs; other bits don't take part."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence

import torch
import triton

from zerokl.bench.kernels import timed
from zerokl.bench.tuned import Found, schedules, streams, streams_of_rows
from zerokl.ops.choices import REFERENCE, Schedule, Shape, Streamed, StreamedRows, Way, candidates
from zerokl.ops.triton import admit
from zerokl.ops.triton.admit import inputs, outcome

ROTATED_BYTES = 120_000_000
"""Of weights, so that none comes from the L2 cache."""


def is_possible() -> bool:
    return bool(torch.cuda.is_available())


def search(layers: dict[str, Shape], rows: Sequence[int], most: int) -> Iterator[Found]:
    """Every layer at every number of rows; up to `most` ways of each kind, spread over what there is."""
    for name, kind in layers.items():
        given = inputs(kind, max(rows), "cuda", admit.KINDS[0])
        expected = outcome(REFERENCE, kind, given, max(rows))
        weights = [given.w, *(given.w.clone() for _ in range(max(1, min(6, ROTATED_BYTES // given.w.nbytes))))]
        for count in rows:
            shape = kind._replace(rows=count)
            before = candidates(shape)[0]
            tried: dict[Way, None] = {before: None}
            for every in (
                streams(count, kind.columns, kind.depth, kind.gated),
                streams_of_rows(shape),
                schedules(count, kind.depth, kind.gated),
            ):
                tried |= dict.fromkeys(every[:: max(1, -(-len(every) // most))])
            times: dict[Way, float] = {}
            for way in tried:
                try:
                    us, differ = timed(way, kind, given, weights, expected, count)
                except (triton.runtime.errors.OutOfResources, RuntimeError):
                    continue
                if not differ:
                    times[way] = us
            ours = {way: us for way, us in times.items() if isinstance(way, Schedule | Streamed | StreamedRows)}
            best = min(ours, key=lambda one: ours[one])
            yield Found(name, shape, best, times[best], before, times[before], len(tried), len(tried) - len(times))


def measured_with() -> dict[str, str]:
    """What a reader of the file may want to know; admission doesn't rely on it."""
    return {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": str(torch.version.cuda),
        "python": platform.python_version(),
    }
