"""store_kv writes the slots it is given, in both layouts, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.paged import bits, paged
from zerokl import _native, ops
from zerokl.errors import EngineError, ShapeError
from zerokl.ops import reference
from zerokl.ops.kv import LayerKV, store_kv


@pytest.mark.parametrize("page_size", [1, 7, 16, 64])
def test_equals_the_reference_and_leaves_other_slots_alone(page_size):
    pool, plain = (paged((5, 33), size=20, page_size=page_size) for _ in range(2))
    parts = [(1, 3, 33), (0, 0, 5)]
    k, v = pool.rows(pool.keys, parts), pool.rows(pool.values, parts)
    store_kv(pool.kv(parts), k, v)
    reference.store_kv(plain.kv(parts), k, v)
    assert bits(pool.k) == bits(plain.k)
    assert bits(pool.v) == bits(plain.v)
    assert np.isnan(pool.k).sum() == pool.k.size - k.size
    assert np.isnan(pool.v).sum() == pool.v.size - v.size


def test_a_padding_row_writes_nothing():
    pool = paged((3,))
    kv = pool.kv([(0, 0, 3)])
    kv.ragged.slots[1] = -1
    store_kv(kv, pool.keys[0], pool.values[0])
    assert np.isfinite(pool.v).sum() == 2 * pool.values[0][0].size


def test_a_slot_outside_the_pool_is_an_engine_error_and_writes_nothing():
    pool = paged((3,))
    for slot in (-2, len(pool.k) * 16):
        kv = pool.kv([(0, 0, 3)])
        kv.ragged.slots[2] = slot
        with pytest.raises(EngineError, match=f"slot {slot} of a pool of 64"):
            store_kv(kv, pool.keys[0], pool.values[0])
    assert np.isnan(pool.k).all()


@pytest.mark.parametrize("dtype", [np.float32, np.uint16, np.uint8])
def test_pages_with_others_between_them_are_stored_and_read_alike(dtype):
    pool, parts = paged((130,), page_size=16), [(0, 0, 130)]
    kv = pool.kv(parts)
    k, v, q = (pool.rows(rows, parts) for rows in (pool.keys, pool.values, pool.queries))
    plain = LayerKV(np.zeros(pool.k.shape, dtype), np.zeros(pool.v.shape, dtype), kv.ragged)
    layers = np.full((len(pool.k), 6, pool.k[0].size), 7, dtype)  # keys and values of three; the second is ours
    among = LayerKV(layers[:, 2].reshape(pool.k.shape), layers[:, 3].reshape(pool.v.shape), kv.ragged)
    for one in (plain, among):
        store_kv(one, k, v)
    assert bits(ops.attention(q, plain, 0.25)) == bits(ops.attention(q, among, 0.25))
    assert (layers[:, [0, 1, 4, 5]] == 7).all()


def test_pages_in_pieces_are_refused():
    pool, kv = paged((3,)), paged((3,)).kv([(0, 0, 3)])
    k, v = pool.keys[0], pool.values[0]
    turned = pool.k.swapaxes(2, 3).copy().swapaxes(2, 3)
    with pytest.raises(ShapeError, match=r"kv.k must be .* \(not contiguous\)"):
        store_kv(LayerKV(turned, pool.v, kv.ragged), k, v)
    with pytest.raises(ShapeError, match="not equally far apart"):
        store_kv(LayerKV(np.zeros((2 * len(pool.k), *pool.k.shape[1:]), np.float32)[::2], pool.v, kv.ragged), k, v)
    for keys, message in ((turned, "each in one piece"), (pool.k[:1], "lie alike"), (read_only(pool.k), "be written")):
        with pytest.raises(ValueError, match=message):
            _native.store_kv(keys, pool.v, kv.ragged.slots, k, v)


def read_only(array):
    view = array.view()
    view.flags.writeable = False
    return view


def test_wrong_shapes_are_named():
    pool = paged((3,))
    kv = pool.kv([(0, 0, 3)])
    with pytest.raises(ShapeError, match=r"k must be \[3, 2, 16\]"):
        store_kv(kv, pool.keys[0][:2], pool.values[0])
    with pytest.raises(ShapeError, match="the pool's pages hold 8 slots, the step's 16"):
        store_kv(LayerKV(pool.k[..., :8].copy(), pool.v[:, :, :8].copy(), kv.ragged), pool.keys[0], pool.values[0])
