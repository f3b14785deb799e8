"""Which program of attention does what: lists of plain integers, made on the host for each step. No torch.

A segment whose packed rows (tokens times query heads per key head) fit in one short tile is cut by chunks of keys, so
that one token behind a long context keeps many processors busy; any other is cut by rows. Which way a segment goes
moves no bit, so when the parts' scratch memory is full, short segments go the long way.

    long items    [.., 8]   segment, first row, tokens, start position, tile                    longest first
    short items   [.., 8]   segment, first row, tokens, start position, chunk, chunks, first    a segment's in order

Layers that see a window of keys have lists of their own, without the chunks that no row sees.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

ITEM = 8
"""Integers per item: one 32-byte sector."""
SHORT_ROWS = 16
"""Packed rows of a short tile: the matrix unit's least."""

LONG_ROWS = 128
"""Packed rows of a long item. A kernel with shorter tiles has several for each."""

CHUNK = 512
"""Keys per chunk on the GPU: frozen, and part of the fingerprint. `docs/log.md` has what it costs and saves."""

I32 = NDArray[np.int32]


class Lists(Struct, frozen=True):
    """The host's side of a step's work."""

    long: I32
    short: I32


class Work(Struct, frozen=True):
    """The device's side: where the lists lie, and how many programs a launch has whatever they hold."""

    counts: Any
    """[8] int32: long items and short items at 0 and 4: kernels are compiled for 16-byte alignment."""
    long: Any
    short: Any
    parts: tuple[Any, Any, Any, Any]
    """Scratch of the short items: m, l [I, K, 16] and O [I, K, 16, D], fp32; and how many of a segment's chunks have
    arrived [I, K], int32: zeros between launches."""
    long_grid: int
    """0: this step's graph has no long items."""
    short_grid: int
    segments: int
    """How many there may be."""
    is_single: bool = False
    """Each has one token, and they see no other's of this step."""


def work_lists(
    starts: I32,
    counts: I32,
    row_starts: I32,
    group: int,
    chunk: int,
    tile_rows: int,
    max_parts: int,
    window: int | None = None,
) -> Lists:
    """The lists of segments with `counts` tokens from position `starts` on, whose rows begin at `row_starts`."""
    firsts = np.zeros_like(starts) if window is None else np.maximum(starts - np.int32(window - 1), 0) // chunk
    chunks = (starts + counts + chunk - 1) // chunk - firsts
    fits = counts * group <= SHORT_ROWS
    fits &= np.cumsum(np.where(fits, chunks, 0)) <= max_parts
    segments = np.arange(len(counts), dtype=np.int32)
    return Lists(
        long_items(segments[~fits], starts, counts, row_starts, group, tile_rows),
        short_items(segments[fits], starts, counts, row_starts, firsts, chunks),
    )


def long_items(segments: I32, starts: I32, counts: I32, row_starts: I32, group: int, tile_rows: int) -> I32:
    tiles = (counts[segments] * group + tile_rows - 1) // tile_rows
    items = items_of(np.repeat(segments, tiles), starts, counts, row_starts)
    items[:, 4] = within(tiles)
    last_key = items[:, 3] + np.minimum((items[:, 4] + 1) * tile_rows // group, items[:, 2])
    return items[np.argsort(-last_key, kind="stable")]


def short_items(segments: I32, starts: I32, counts: I32, row_starts: I32, firsts: I32, chunks: I32) -> I32:
    own, first = chunks[segments], np.repeat(firsts[segments], chunks[segments])
    items = items_of(np.repeat(segments, own), starts, counts, row_starts)
    items[:, 4], items[:, 5], items[:, 6] = first + within(own), np.repeat(own, own), first
    return items


def items_of(segments: I32, starts: I32, counts: I32, row_starts: I32) -> I32:
    items = np.zeros((len(segments), ITEM), np.int32)
    items[:, 0], items[:, 1] = segments, row_starts[segments]
    items[:, 2], items[:, 3] = counts[segments], starts[segments]
    return items


def within(counts: I32) -> I32:
    """[2, 3] -> [0, 1, 0, 1, 2]."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total, dtype=np.int32) - np.repeat(ends - counts, counts).astype(np.int32)
