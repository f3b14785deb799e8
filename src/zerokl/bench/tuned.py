"""What `zerokl tune` tries, and what it keeps. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from zerokl.ops.choices import Schedule, Shape, Streamed, StreamedRows, Way, dividing, most_steps, streamed_rows

ROWS = (1, 8, 16, 32, 64)
PROCESSORS, SHARED_BYTES = 132, 225_000
"""Of the family that winners are for."""
STREAMED_ROWS = 16
WORTH = 0.98
"""A winner takes at most this part of the time of what it replaces: less is noise."""


@dataclass(frozen=True, slots=True)
class Found:
    """The best of one layer at one number of rows."""

    layer: str
    shape: Shape
    schedule: Schedule | Streamed | StreamedRows
    us: float
    before: Way
    before_us: float
    tried: int
    rejected: int
    """Gave other bits, or didn't compile."""

    @property
    def won(self) -> bool:
        return self.us <= WORTH * self.before_us

    @property
    def entry(self) -> dict[str, Any]:
        """As in `winners.json`."""
        shape = self.shape
        layer = {"rows": shape.rows, "columns": shape.columns, "depth": shape.depth, "gated": shape.gated}
        return layer | {"schedule": list(self.schedule), "us": round(self.us, 2), "before_us": round(self.before_us, 2)}


def schedules(rows: int, depth: int, gated: bool) -> list[Schedule]:
    """What is worth a try: tiles of weights that keep many bytes on their way."""
    tile, found = max(8, rows), []
    for columns, step, warps, stages in product((16, 32, 64, 128), (64, 128, 256, 512), (1, 2, 4), (3, 4, 5, 6)):
        bytes_ahead = columns * (2 if gated else 1) * step * 2 * stages
        if 32_768 <= bytes_ahead <= 196_608 and columns * step <= 16_384 * warps and columns >= 16 * warps // 4:
            swapped = tile < 64
            found.append(Schedule(tile, columns, dividing(step, depth), swapped, warps, stages))
    return list(dict.fromkeys(found))


def streams(rows: int, columns: int, depth: int, gated: bool) -> list[Streamed]:
    """The same for weights that bulk copies bring: as many places as one to four programs a processor have."""
    found, height = [], max(8, 1 << (rows - 1).bit_length())
    for tile, step, each, soon in product((16, 32, 64), (128, 256, 512), (1, 2, 3, 4), (True, False)):
        weights = tile * (2 if gated else 1) * step * 2
        stages = min(8, (SHARED_BYTES // each - 1300) // (weights + height * step * 2))
        tiles = -(-columns // tile)
        if stages >= 3 and stages * weights >= 24_000 and tiles > PROCESSORS * (each - 1) and depth % step == 0:
            found.append(Streamed(tile, step, stages, PROCESSORS * each, soon))
    return found if rows <= STREAMED_ROWS else []


def streams_of_rows(shape: Shape) -> list[StreamedRows]:
    """The same for more rows: every number of outputs with which few processors are left over."""
    found = []
    for columns, soon in product(range(16, 97 if shape.gated else 193, 16), (True, False)):
        tiles = -(-shape.columns // columns)
        turns = -(-tiles // PROCESSORS)
        if tiles > 0.6 * turns * PROCESSORS:
            found.append(StreamedRows(columns, most_steps(columns, shape.gated), PROCESSORS, soon))
    return found if streamed_rows(shape) else []


def still_good(entries: Iterable[Mapping[str, Any]], found: Found) -> list[Mapping[str, Any]]:
    """Earlier winners, without that of the layer and rows that were tuned again, unless nothing beat it."""
    names = ("columns", "depth", "gated", "rows")
    shape = found.shape
    again = (shape.columns, shape.depth, shape.gated, shape.rows)
    return [
        entry
        for entry in entries
        if tuple(entry[name] for name in names) != again
        or (not found.won and list(entry["schedule"]) == list(found.before))
    ]
