"""Steps as buffers of integers: buckets, layouts, work lists, padding; what the GPU is told, checked without one."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zerokl.errors import EngineError
from zerokl.ops.work import SHORT_ROWS, work_lists
from zerokl.runner.buckets import PAGE_SIZE, TOKEN_BUCKETS, Capacity, Kind, bucket_of, buckets_up_to
from zerokl.runner.packing import pack_step, rehearsal, views_of
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

CAPACITY = Capacity(max_tokens=512, max_segments=16, table_width=20, kinds=(Kind(None, 4),), chunk=128, tile_rows=64)
HYBRID = Capacity(512, 16, 20, (Kind(130, 2), Kind(None, 4)), 128, 64, interval=64)
"""Two kinds of attention, and states."""
spans = st.lists(st.tuples(st.integers(0, 700), st.integers(1, 60)), min_size=1, max_size=16)
"""(start, tokens) of each segment."""


def segments_of(spans: list[tuple[int, int]]) -> list[Segment]:
    made, page = [], 0
    for number, (start, count) in enumerate(spans):
        needed = -(-(start + count) // PAGE_SIZE)
        pages = [PageId(page + i) for i in range(needed)]
        page += needed
        made.append(Segment(RequestId(number), start, list(range(100, 100 + count)), pages))
    return made


def buffer() -> np.ndarray:
    """What an earlier step left: nothing that makes sense."""
    return np.full(CAPACITY.layout(512, False).size, -(2**20), np.int32)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(spans.filter(lambda spans: sum(count for _, count in spans) <= 512))
def test_a_step_lies_in_its_bucket_and_padding_is_nobody(spans):
    segments, lies = segments_of(spans), buffer()
    packed = pack_step(segments, {}, CAPACITY, lies)
    views, total = views_of(packed.layout, lies), sum(count for _, count in spans)
    assert packed.layout.tokens == bucket_of(total, TOKEN_BUCKETS)
    positions = [position for start, count in spans for position in range(start, start + count)]
    assert views["positions"].tolist() == positions + [-1] * (packed.layout.tokens - total)
    assert (views["slots"][total:] == -1).all()
    assert len(set(views["slots"][:total].tolist())) == total
    assert (views["tokens"][total:] == 0).all()
    assert packed.used <= packed.layout.size <= len(lies)
    assert packed.is_short == (packed.layout.items[0].long == 0)


@pytest.mark.parametrize(("spans", "is_short"), [([(0, 1), (700, 1)], True), ([(0, 1), (700, 2)], False)])
def test_a_short_step_has_single_tokens_only(spans, is_short):
    """Two tokens of a segment would fit a short tile as well, but one must see the other's key of this very step."""
    assert pack_step(segments_of(spans), {}, CAPACITY, buffer()).is_short is is_short


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(spans, st.sampled_from([0, 3, 10_000]), st.sampled_from([16, 64, 128]), st.sampled_from([1, 3, 4, 16]))
def test_work_lists_give_each_row_each_key_once(spans, max_parts, tile_rows, group):
    starts, counts = (np.array(column, np.int32) for column in zip(*spans, strict=True))
    row_starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    lists = work_lists(starts, counts, row_starts, group, 128, tile_rows, max_parts)
    seen: Counter[tuple[int, int]] = Counter()
    for segment, first, tokens, start, tile, *_ in lists.long.tolist():
        assert (first, tokens, start) == (row_starts[segment], counts[segment], starts[segment])
        for packed in range(tile * tile_rows, min((tile + 1) * tile_rows, tokens * group)):
            chunks = (start + packed // group) // 128 + 1
            seen.update((segment, packed, chunk) for chunk in range(chunks))
    for segment, _, tokens, start, chunk, chunks, *_ in lists.short.tolist():
        assert tokens * group <= SHORT_ROWS
        assert chunks == -(-(start + tokens) // 128)
        rows = [packed for packed in range(tokens * group) if chunk * 128 <= start + packed // group]
        seen.update((segment, packed, chunk) for packed in rows)
    wanted = {
        (segment, packed, chunk)
        for segment, (start, count) in enumerate(spans)
        for packed in range(count * group)
        for chunk in range((start + packed // group) // 128 + 1)
    }
    assert set(seen) == wanted
    assert set(seen.values()) == {1}
    assert len(lists.short) <= max_parts
    for place, (segment, *_, chunk, chunks, _, _) in enumerate(lists.short.tolist()):
        own = lists.short[place - chunk : place - chunk + chunks]
        assert own[:, 0].tolist() == [segment] * chunks, "the last part to come finds the others beside its own"
        assert own[:, 4].tolist() == list(range(chunks))


def test_the_longest_tiles_come_first_so_that_none_is_left_at_the_end():
    lists = work_lists(
        np.array([0, 600], np.int32), np.array([64, 64], np.int32), np.array([0, 64, 128]), 4, 128, 64, 0
    )
    keys = lists.long[:, 3] + (lists.long[:, 4] + 1) * 16
    assert keys.tolist() == sorted(keys.tolist(), reverse=True)


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(spans, st.integers(1, 400), st.sampled_from([0, 10_000]), st.sampled_from([1, 4]))
def test_work_lists_of_a_window_leave_out_chunks_that_no_row_sees_and_no_other(spans, window, max_parts, group):
    starts, counts = (np.array(column, np.int32) for column in zip(*spans, strict=True))
    row_starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    lists = work_lists(starts, counts, row_starts, group, 128, 64, max_parts, window)
    for place, (segment, _, tokens, start, chunk, chunks, first, _) in enumerate(lists.short.tolist()):
        assert first == max(0, start - window + 1) // 128
        assert first + chunks == -(-(start + tokens) // 128)
        own = lists.short[place - (chunk - first) :][:chunks]
        assert own[:, 0].tolist() == [segment] * chunks
        assert own[:, 4].tolist() == list(range(first, first + chunks))
    whole = work_lists(starts, counts, row_starts, group, 128, 64, 0)
    assert max_parts or np.array_equal(lists.long, whole.long)


def test_each_kind_of_layers_has_pages_slots_and_work_of_its_own():
    capacity = HYBRID
    lies = np.full(capacity.layout(512, False).size, -(2**20), np.int32)
    windows = (WindowPages(2, [PageId(50), PageId(51), PageId(52)]),)
    state = StateUse(StateSlot(3), StateSlot(3), ((256, StateSlot(9)),))
    tokens = list(range(30))
    one = Segment(RequestId(1), 250, tokens, [PageId(i) for i in range(5)], windows=windows, state=state)
    other = Segment(
        RequestId(2),
        0,
        [7],
        [PageId(9)],
        windows=(WindowPages(0, [PageId(60)]),),
        state=StateUse(ZERO_STATE, StateSlot(4)),
    )
    packed = pack_step([one, other], {}, capacity, lies)
    views, width = views_of(packed.layout, lies), packed.layout.table_width
    assert views["page_table"][0, :5].tolist() == [-1, -1, 50, 51, 52]
    assert views["page_table"][0, width : width + 5].tolist() == [0, 1, 2, 3, 4]
    assert views["page_table"][1, [0, width]].tolist() == [60, 9]
    assert views["slots"][[0, 5, 6, 30, 31]].tolist() == [51 * 64 + 58, 51 * 64 + 63, 52 * 64, 60 * 64, -1]
    assert views["slots.1"][[0, 30, 31]].tolist() == [3 * 64 + 58, 9 * 64, -1]
    assert views["segment_of_row"].tolist() == [0] * 30 + [1, -1]
    assert views["row_starts"][:4].tolist() == [0, 30, 31, 31]
    assert (views["source"][:3].tolist(), views["live"][:3].tolist()) == ([3, -1, -1], [3, 4, -1])
    assert (views["write_starts"][:3].tolist(), views["writes"][0].tolist()) == ([0, 1, 1], [6, 9])
    assert packed.used == packed.layout.offsets["page_table"] + 2 * 2 * width


def test_pending_tokens_are_named_by_their_place():
    segment = Segment(RequestId(7), 3, [PENDING_TOKEN], [PageId(0)])
    lies = buffer()
    packed = pack_step([segment], {RequestId(7): 5}, CAPACITY, lies)
    assert views_of(packed.layout, lies)["tokens"].tolist() == [-6]
    with pytest.raises(EngineError, match="request 7 waits for a token"):
        pack_step([segment], {RequestId(6): 5}, CAPACITY, lies)


@pytest.mark.parametrize("spans", [[(0, 513)], [(0, 1)] * 17])
def test_a_step_that_is_too_large_is_our_fault(spans):
    with pytest.raises(EngineError, match="there is room for 16 and 512"):
        pack_step(segments_of(spans), {}, CAPACITY, buffer())


@pytest.mark.parametrize("tokens", buckets_up_to(512, TOKEN_BUCKETS))
@pytest.mark.parametrize("is_short", [True, False])
@pytest.mark.parametrize("capacity", [CAPACITY, HYBRID], ids=["plain", "hybrid"])
def test_arrays_start_at_sixteen_bytes_and_do_not_overlap(tokens, is_short, capacity):
    layout = capacity.layout(tokens, is_short)
    ends = 0
    for name, shape in layout.shapes.items():
        assert layout.offsets[name] % 4 == 0
        assert layout.offsets[name] >= ends
        ends = layout.offsets[name] + int(np.prod(shape))
    assert ends <= layout.size


@pytest.mark.parametrize("is_short", [True, False])
@pytest.mark.parametrize("capacity", [CAPACITY, HYBRID], ids=["plain", "hybrid"])
def test_a_rehearsal_fills_its_bucket_with_slots_of_its_own(is_short, capacity):
    for tokens in buckets_up_to(512, TOKEN_BUCKETS):
        segments = rehearsal(tokens, capacity, 40, 200, is_short)
        if segments is None:
            assert is_short
            assert tokens > capacity.short_tokens
            continue
        lies = np.full(capacity.layout(512, False).size, -(2**20), np.int32)
        packed = pack_step(segments, {}, capacity, lies)
        assert packed.layout.tokens == tokens
        slots = views_of(packed.layout, lies)["slots"]
        assert len(set(slots[slots >= 0].tolist())) == (slots >= 0).sum()  # integers


def test_a_pool_too_small_for_a_bucket_has_no_rehearsal_of_it():
    assert rehearsal(512, CAPACITY, 2, 200, False) is None
    assert rehearsal(16, CAPACITY, 3, 200, True) is None
