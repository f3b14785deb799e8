"""A StepPlan's segments as arrays: the ragged batch that goes once through the model.

The only loop is over segments; tokens, positions and slots are whole-array expressions.

    segments      A: positions 5..7      B: 130       C: 0..3
    tokens        a5 a6 a7               b130         c0 c1 c2 c3        T = 8
    row_starts    0                      3            4            8
    page_table    A's pages              B's pages    C's pages          padded to the longest
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from zerokl import ops
from zerokl.errors import EngineError
from zerokl.types import Segment

PADDING_PAGE = 0
"""Stands in the page table after a segment's last page; no position of the segment leads there."""
PASSED_PAGE = -1
"""Stands in a sliding kind's page table before a segment's window, where no operation looks."""


def ragged_tokens(segments: Sequence[Segment], page_size: int) -> tuple[np.ndarray, ops.Ragged]:
    """(tokens [T], the step's shape) of the segments, in order. Raises EngineError if pages don't cover positions."""
    counts = np.array([len(segment.tokens) for segment in segments], np.int32)
    starts = np.array([segment.start for segment in segments], np.int32)
    row_starts = np.zeros(len(segments) + 1, np.int32)
    np.cumsum(counts, out=row_starts[1:])
    tokens = np.concatenate([np.asarray(segment.tokens, np.int32) for segment in segments])
    segment_of_row = np.repeat(np.arange(len(segments), dtype=np.int32), counts)
    positions = np.arange(len(tokens), dtype=np.int32) + (starts - row_starts[:-1])[segment_of_row]
    page_table = table_of_pages(segments, page_size)
    slots = slots_of(page_table, segment_of_row, positions, page_size)
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


def table_of_pages(segments: Sequence[Segment], page_size: int) -> np.ndarray:
    """[S, P] int32: each segment's pages up to its last position."""
    needed = [-(-(segment.start + len(segment.tokens)) // page_size) for segment in segments]
    table = np.full((len(segments), max(needed)), PADDING_PAGE, np.int32)
    for row, segment, count in zip(table, segments, needed, strict=True):
        if len(segment.pages) < count:
            raise EngineError(
                f"request {segment.request_id}: {len(segment.pages)} pages of {page_size} slots don't cover "
                f"{segment.start + len(segment.tokens)} positions"
            )
        row[:count] = segment.pages[:count]
    return table
