"""A step as one buffer of integers: what the GPU needs to know of a plan, padded to a bucket. No torch.

Padding rows have token 0, position -1 and slot -1: they are in no segment, so nothing attends for them, they write no
key, and nobody reads what becomes of them. Whatever else stands in the buffer is of an earlier step and never read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zerokl.errors import EngineError
from zerokl.ops.work import Lists, work_lists
from zerokl.runner.batch import ragged_tokens
from zerokl.runner.buckets import MAX_PARTS, PAGE_SIZE, TOKEN_BUCKETS, Capacity, Layout, bucket_of
from zerokl.types import PENDING_TOKEN, PageId, RequestId, Segment

I32 = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Packed:
    """What was written."""

    layout: Layout
    is_short: bool
    """No long item: the step may run a graph without their launch."""
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
    counts = np.diff(ragged.row_starts).astype(np.int32)
    starts = ragged.positions[ragged.row_starts[:-1]]
    lists = work_lists(starts, counts, ragged.row_starts, capacity.group, capacity.chunk, capacity.tile_rows, MAX_PARTS)
    is_short = len(lists.long) == 0 and bucket_of(len(tokens), TOKEN_BUCKETS) <= capacity.short_tokens
    layout = capacity.layout(bucket_of(len(tokens), TOKEN_BUCKETS), is_short)
    views = views_of(layout, buffer)
    for name, values, padding in (
        ("tokens", tokens, 0),
        ("positions", ragged.positions, -1),
        ("slots", ragged.slots, -1),
    ):
        views[name][: len(values)], views[name][len(values) :] = values, padding
    write_lists(views, lists)
    table = ragged.page_table
    views["page_table"][: len(table), : table.shape[1]] = table
    used = layout.offsets["page_table"] + len(table) * layout.table_width
    return Packed(layout, is_short, used, ragged.row_starts)


def name_pending(tokens: I32, segments: Sequence[Segment], row_starts: I32, places: Mapping[RequestId, int]) -> None:
    """Replace each pending token by -1 - its place among the tokens drawn by the step before."""
    for segment, stop in zip(segments, row_starts[1:].tolist(), strict=True):
        if segment.tokens[-1] == PENDING_TOKEN:
            place = places.get(segment.request_id)
            if place is None:
                raise EngineError(f"request {segment.request_id} waits for a token that the step before didn't draw")
            tokens[stop - 1] = -1 - place


def write_lists(views: Mapping[str, I32], lists: Lists) -> None:
    for place, name in enumerate(("long", "short")):
        items = getattr(lists, name)
        if len(items) > len(views[name]):
            raise EngineError(f"{len(items)} {name} items of attention; there is room for {len(views[name])}")
        views[name][: len(items)] = items
        views["counts"][4 * place] = len(items)


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

    Every row has a slot of its own. None if the pool or the limits allow no step of that bucket.
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
        segments.append(Segment(RequestId(number), 0, [1 + i % 7 for i in range(length)], pages))
        page = stop
    return segments if page <= num_pages and len(segments) <= capacity.max_segments else None
