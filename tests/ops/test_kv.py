"""store_kv writes the slots it is given, in both layouts, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.paged import bits, paged
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


def test_wrong_shapes_are_named():
    pool = paged((3,))
    kv = pool.kv([(0, 0, 3)])
    with pytest.raises(ShapeError, match=r"k must be \[3, 2, 16\]"):
        store_kv(kv, pool.keys[0][:2], pool.values[0])
    with pytest.raises(ShapeError, match="the pool's pages hold 8 slots, the step's 16"):
        store_kv(LayerKV(pool.k[..., :8].copy(), pool.v[:, :, :8].copy(), kv.ragged), pool.keys[0], pool.values[0])
