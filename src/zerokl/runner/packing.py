"""A step as one buffer of integers: what the GPU needs to know of a plan, padded to a bucket. No torch.

Padding rows have token 0, position -1 and slot -1: they are in no segment, so nothing attends for them, they write no
key, and nobody reads what becomes of them. Whatever else stands in the buffer is of an earlier step and never read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from zerokl.errors import EngineError
from zerokl.ops.kv import Ragged
from zerokl.ops.work import Lists, work_lists
from zerokl.runner.batch import ragged_tokens, window_ragged
from zerokl.runner.buckets import MAX_PARTS, PAGE_SIZE, TOKEN_BUCKETS, Capacity, Kind, Layout, bucket_of, named
from zerokl.runner.state import step_states
from zerokl.types import (
    PENDING_TOKEN,
    ZERO_STATE,
    PageId,
    RequestId,
    Segment,
    StateSlot,
    StateUse,
    WindowPages,
)

I32 = NDArray[np.int32]


class Packed(Struct, frozen=True):
    """What was written."""

    layout: Layout
    is_short: bool
    """Single tokens, no long item: the step may run a graph without their launch."""
    used: int
    """Integers of the buffer that count."""
    row_starts: I32


def pack_step(segments: Sequence[Segment], places: Mapping[RequestId, int], capacity: Capacity, buffer: I32) -> Packed:
    """Write the step into `buffer`. `places`: where the step before put the token that it drew for a request.

    Raises EngineError for a plan that is too large, whose pages don't cover it, or that names a token nobody drew.
    """
    tokens, ragged = ragged_tokens(segments, PAGE_SIZE)
    if len(tokens) > capacity.max_tokens or len(segments) > capacity.max_segments:
        raise EngineError(
            f"a step of {len(segments)} segments and {len(tokens)} tokens; "
            f"there is room for {capacity.max_segments} and {capacity.max_tokens}"
        )
    name_pending(tokens, segments, ragged.row_starts, places)
    lists = [lists_of(ragged, kind, capacity) for kind in capacity.kinds]
    bucket = bucket_of(len(tokens), TOKEN_BUCKETS)
    is_single = len(tokens) == len(segments)
    is_short = is_single and not any(len(one.long) for one in lists) and bucket <= capacity.short_tokens
    layout = capacity.layout(bucket, is_short)
    views = views_of(layout, buffer)
    padded(views["tokens"], tokens, 0)
    padded(views["positions"], ragged.positions, -1)
    tables = views["page_table"].reshape(layout.segments, -1, layout.table_width)
    for number, (kind, own) in enumerate(zip(capacity.kinds, lists, strict=True)):
        seen = ragged
        if kind.window is not None:
            seen = window_ragged(segments, capacity.windows.index(kind.window), ragged)
        padded(views[named("slots", number)], seen.slots, -1)
        write_lists(views, number, own)
        tables[: len(segments), number, : seen.page_table.shape[1]] = seen.page_table
    if layout.checkpoints:
        write_states(views, segments, ragged)
    used = layout.offsets["page_table"] + len(segments) * layout.row_of_tables
    return Packed(layout, is_short, used, ragged.row_starts)


def padded(view: I32, values: I32, padding: int) -> None:
    view[: len(values)], view[len(values) :] = values, padding


def lists_of(ragged: Ragged, kind: Kind, capacity: Capacity) -> Lists:
    """Attention's work for one kind of layers."""
    return work_lists(
        ragged.positions[ragged.row_starts[:-1]],
        np.diff(ragged.row_starts).astype(np.int32),
        ragged.row_starts,
        kind.group,
        capacity.chunk,
        capacity.tile_rows,
        MAX_PARTS,
        kind.window,
    )


def write_states(views: Mapping[str, I32], segments: Sequence[Segment], ragged: Ragged) -> None:
    """Where states come from and go to; padding is in no segment, and a segment that isn't there has no slot."""
    step = step_states(segments, ragged)
    padded(views["segment_of_row"], step.segment_of_row, -1)
    padded(views["row_starts"], ragged.row_starts, int(ragged.row_starts[-1]))
    padded(views["source"], np.array([segment.state.source for segment in segments if segment.state], np.int32), -1)
    padded(views["live"], step.live, -1)
    count, counts = len(step.write_rows), np.bincount(step.write_segments, minlength=len(segments))
    if count > len(views["writes"]):
        raise EngineError(f"{count} checkpoints in a step; there is room for {len(views['writes'])}")
    padded(views["write_starts"], np.concatenate(([0], np.cumsum(counts))).astype(np.int32), count)
    views["writes"][:count] = np.stack([step.write_rows, step.write_slots], 1)


def name_pending(tokens: I32, segments: Sequence[Segment], row_starts: I32, places: Mapping[RequestId, int]) -> None:
    """Replace each pending token by -1 - its place among the tokens drawn by the step before."""
    for segment, stop in zip(segments, row_starts[1:].tolist(), strict=True):
        if segment.tokens[-1] == PENDING_TOKEN:
            place = places.get(segment.request_id)
            if place is None:
                raise EngineError(f"request {segment.request_id} waits for a token that the step before didn't draw")
            tokens[stop - 1] = -1 - place


def write_lists(views: Mapping[str, I32], kind: int, lists: Lists) -> None:
    for place, name in enumerate(("long", "short")):
        items, view = getattr(lists, name), views[named(name, kind)]
        if len(items) > len(view):
            raise EngineError(f"{len(items)} {name} items of attention; there is room for {len(view)}")
        view[: len(items)] = items
        views[named("counts", kind)][4 * place] = len(items)


def views_of(layout: Layout, buffer: I32) -> dict[str, I32]:
    """The arrays of a layout in a buffer; works alike on numpy arrays and torch tensors."""
    offsets = layout.offsets
    views = {}
    for name, shape in layout.shapes.items():
        size = shape[0] * (shape[1] if len(shape) > 1 else 1)
        views[name] = buffer[offsets[name] : offsets[name] + size].reshape(shape)
    return views


def rehearsal(
    tokens: int, capacity: Capacity, num_pages: int, context_length: int, is_short: bool
) -> list[Segment] | None:
    """A made-up step that fills a bucket: with `is_short` single tokens, else as few long segments as can be.

    Every row has a slot of its own, in every kind: `num_pages` is the smallest pool's. None if the pool or the limits
    allow no step of that bucket.
    """
    most = min(tokens, capacity.max_tokens, num_pages if is_short else num_pages * PAGE_SIZE)
    most = min(most, capacity.max_segments * (1 if is_short else context_length))
    if most < 1 or bucket_of(most, TOKEN_BUCKETS) != tokens:
        return None
    longest = 1 if is_short else context_length
    lengths = [longest] * (most // longest) + [most % longest] * (most % longest > 0)
    segments, page = [], 0
    for number, length in enumerate(lengths):
        stop = page + -(-length // PAGE_SIZE)
        pages = [PageId(one) for one in range(page, stop)]
        windows = tuple(WindowPages(0, pages) for _ in capacity.windows)
        state = StateUse(ZERO_STATE, StateSlot(number)) if capacity.interval else None
        ids = [1 + i % 7 for i in range(length)]
        segments.append(Segment(RequestId(number), 0, ids, pages, windows=windows, state=state))
        page = stop
    return segments if page <= num_pages and len(segments) <= capacity.max_segments else None
