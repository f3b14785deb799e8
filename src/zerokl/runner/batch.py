"""A StepPlan's segments as arrays: the ragged batch that goes once through the model.

Native code makes them: with numpy's a step of one token took 80 us for it, as everything is cold by then.

    segments      A: positions 5..7      B: 130       C: 0..3
    tokens        a5 a6 a7               b130         c0 c1 c2 c3        T = 8
    row_starts    0                      3            4            8
    page_table    A's pages              B's pages    C's pages          padded to the longest
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from zerokl import _native, ops
from zerokl.errors import EngineError
from zerokl.types import Segment

PADDING_PAGE = 0
"""Stands in the page table after a segment's last page; no position of the segment leads there."""
PASSED_PAGE = -1
"""Stands in a sliding kind's page table before a segment's window, where no operation looks."""


def ragged_tokens(segments: Sequence[Segment], page_size: int) -> tuple[np.ndarray, ops.Ragged]:
    """(tokens [T], the step's shape) of the segments, in order; no page stands for 0, `PADDING_PAGE`.

    Raises EngineError if pages don't cover positions.
    """
    tokens, *shape, page_table = _native.ragged(segments, page_size)
    positions, slots, row_starts = shape
    return tokens, ops.Ragged(positions, slots, row_starts, page_table, page_size)


def window_ragged(segments: Sequence[Segment], kind: int, ragged: ops.Ragged) -> ops.Ragged:
    """The same step with the page table and the slots of one sliding kind. Raises EngineError as `ragged_tokens`."""
    size, counts = ragged.page_size, np.diff(ragged.row_starts)
    table = np.full_like(ragged.page_table, PADDING_PAGE)
    for row, segment in zip(table, segments, strict=True):
        pages, last = segment.windows[kind], (segment.start + len(segment.tokens) - 1) // size
        if not pages.first * size <= segment.start or pages.first + len(pages.pages) <= last:
            raise EngineError(
                f"request {segment.request_id}: pages {pages.first} to {pages.first + len(pages.pages) - 1} of sliding "
                f"kind {kind} don't hold positions {segment.start} to {segment.start + len(segment.tokens) - 1}"
            )
        row[: pages.first] = PASSED_PAGE
        row[pages.first : last + 1] = pages.pages[: last + 1 - pages.first]
    segment_of_row = np.repeat(np.arange(len(segments), dtype=np.int32), counts)
    slots = slots_of(table, segment_of_row, ragged.positions, size)
    return ops.Ragged(ragged.positions, slots, ragged.row_starts, table, size)


def slots_of(page_table: np.ndarray, segment_of_row: np.ndarray, positions: np.ndarray, page_size: int) -> np.ndarray:
    """[T] int32: where each row's own key goes."""
    pages = page_table[segment_of_row, positions // page_size]
    slots: np.ndarray = pages * np.int32(page_size) + positions % np.int32(page_size)
    return slots
