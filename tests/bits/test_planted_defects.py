"""Two defects that no plan of the CPU's engine can show: padding rows that aren't masked, hidden keys multiplied by 0.

The others are planted beside the property that sees them: stale pages, a match off by one and seeds by slot in
`test_plans_fake.py`; split sums, log(softmax) and a key read too far in `test_runner.py`.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.paged import bits, paged
from zerokl.ops import reference
from zerokl.ops.kv import LayerKV, Ragged, store_kv
from zerokl.runner.buckets import PAGE_SIZE, Capacity, Kind
from zerokl.runner.packing import pack_step, views_of
from zerokl.types import PageId, RequestId, Segment

CAPACITY = Capacity(max_tokens=16, max_segments=4, table_width=2, kinds=(Kind(None, 1),), chunk=512, tile_rows=16)


def cache_after_a_step_in_a_bucket(of_padding: int | None = None) -> bytes:
    """The pool after a step of 3 rows, packed for a bucket of 4. `of_padding`: what stands where -1 should."""
    buffer = np.full(CAPACITY.layout(16, False).size, 1, np.int32)  # an earlier step's, which named slot 1
    segment = Segment(RequestId(0), 0, [5, 6, 7], [PageId(0)])
    packed = pack_step([segment], {}, CAPACITY, buffer)
    views = views_of(packed.layout, buffer)
    if of_padding is not None:
        views["slots"][3:] = views["positions"][3:] = of_padding
    rows = len(views["slots"])
    assert rows == 4, "the bucket has a padding row"
    shape = Ragged(
        views["positions"], views["slots"], np.array([0, rows], np.int32), views["page_table"][:1], PAGE_SIZE
    )
    k, v = np.full((1, 2, 16, PAGE_SIZE), np.nan, np.float32), np.full((1, 2, PAGE_SIZE, 16), np.nan, np.float32)
    own = np.random.default_rng(0).standard_normal((rows, 2, 16)).astype(np.float32)
    store_kv(LayerKV(k, v, shape), own, own)
    assert np.isfinite(v[0, :, 1:3]).all(), "the rows of the step are there"
    return bits(k) + bits(v)


def test_a_padding_row_that_writes_its_key_is_seen():
    pool = paged((3,), heads=2, page_size=PAGE_SIZE)
    pool.keys[0] = pool.values[0] = np.random.default_rng(0).standard_normal((4, 2, 16)).astype(np.float32)[:3]
    pool.page_table[0, 0], pool.k, pool.v = 0, pool.k[:1], pool.v[:1]
    pool.step([(0, 0, 3)])
    unpadded = bits(pool.k) + bits(pool.v)
    assert cache_after_a_step_in_a_bucket() == unpadded
    for planted in (0, 1, 40):  # a zeroed buffer, an earlier step's slot, a page that is free
        assert cache_after_a_step_in_a_bucket(planted) != unpadded, planted


def read_whole_pages(patch: pytest.MonkeyPatch) -> None:
    """Harmless: keys past the last position, free slots full of NaN, are loaded and then hidden."""
    gather = reference.gather

    def to_the_pages_end(kv: LayerKV, pages, num_keys: int, heads: int):
        return gather(kv, pages, -(-num_keys // kv.ragged.page_size) * kv.ragged.page_size, heads)

    patch.setattr(reference, "gather", to_the_pages_end)


def multiply_hidden_keys_by_zero(patch: pytest.MonkeyPatch) -> None:
    chunk = reference.chunk

    def multiplied(q, k, v, visible, *rest):
        m, total, out = chunk(q, k, v, visible, *rest)
        return m, total, out + (v * np.float32(0)).sum(axis=0)

    patch.setattr(reference, "chunk", multiplied)


@pytest.mark.parametrize("free", [np.nan, np.inf, 3.0])
def test_a_free_slot_that_is_multiplied_by_zero_is_seen_if_it_holds_nan(free: float, monkeypatch: pytest.MonkeyPatch):
    """Why tests fill free pages with NaN: a finite number there would hide the defect."""
    pool = paged((20,), page_size=16)
    expected = pool.step([(0, 0, 20)])[0]  # the real kernel, among NaN
    pool.k[np.isnan(pool.k)] = pool.v[np.isnan(pool.v)] = free
    kv = pool.kv([(0, 0, 20)])

    read_whole_pages(monkeypatch)
    assert bits(reference.attention(pool.queries[0], kv, 0.25)) == bits(expected)
    multiply_hidden_keys_by_zero(monkeypatch)
    found = reference.attention(pool.queries[0], kv, 0.25)
    if np.isfinite(free):
        assert bits(found) == bits(expected)
    else:
        assert np.isnan(found).all()
