"""`rotate_and_store` is its operations one after the other, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.cpus import every_cpu
from tests.ops.numbers import same, wide
from zerokl import ops
from zerokl.errors import EngineError, ShapeError, UnsupportedDtype
from zerokl.ops import reference
from zerokl.ops.kv import F32, LayerKV, Ragged

PAGES, PAGE = 60, 8


def pool(slots: list[int], kv_heads: int, size: int) -> LayerKV:
    """An empty pool, NaN all over, and a step that writes to these slots."""
    k = np.full((PAGES, kv_heads, size, PAGE), np.nan, np.float32)
    v = np.full((PAGES, kv_heads, PAGE, size), np.nan, np.float32)
    rows = len(slots)
    step = Ragged(
        np.arange(rows, dtype=np.int32),
        np.array(slots, np.int32),
        np.array([0, rows], np.int32),
        np.zeros((1, PAGES), np.int32),
        PAGE,
    )
    return LayerKV(k, v, step)


def in_turn(
    qkv: F32, kv: LayerKV, turns: tuple[F32, F32], heads: int, norms: tuple[F32, F32] | None, eps: float
) -> F32:
    q, k, v = ops.split_heads(qkv, heads, kv.k.shape[1])
    if norms:
        q, k = reference.rms_norm(q, norms[0], eps), reference.rms_norm(k, norms[1], eps)
    reference.store_kv(kv, reference.rope(k, *turns), v)
    return reference.rope(q, *turns)


# (rows, H, K, D, R/2): one row; a part of the head turned; more rows than one task has (16,384 / 96).
@pytest.mark.parametrize(
    ("rows", "heads", "kv_heads", "size", "pairs"), [(1, 4, 2, 8, 4), (7, 3, 1, 40, 18), (400, 4, 2, 24, 12)]
)
@pytest.mark.parametrize("normed", [False, True])
def test_every_cpu_equals_the_reference_in_turn(rows, heads, kv_heads, size, pairs, normed):
    qkv = wide(1, rows, (heads + 2 * kv_heads) * size)
    slots = np.random.default_rng(2).permutation(PAGES * PAGE)[:rows].tolist()
    turns = ops.rope_table(np.arange(rows, dtype=np.int32) * 31, 100.0 ** -np.arange(pairs))
    norms = (wide(3, size), wide(4, size)) if normed else None
    expected = pool(slots, kv_heads, size)
    q = in_turn(qkv, expected, turns, heads, norms, 1e-6)
    named = {"q_norm": norms[0], "k_norm": norms[1], "norm_eps": 1e-6} if norms else {}
    for name in every_cpu():
        kv = pool(slots, kv_heads, size)
        assert same(ops.rotate_and_store(qkv, kv, turns, heads, **named), q), name
        assert same(kv.k, expected.k), name
        assert same(kv.v, expected.v), name


def test_a_padding_row_is_written_nowhere():
    qkv, turns = wide(1, 3, 32), ops.rope_table(np.arange(3, dtype=np.int32), np.ones(4))
    kv = pool([5, -1, 9], 1, 8)
    ops.rotate_and_store(qkv, kv, turns, 2)
    assert np.isfinite(kv.k).sum() == np.isfinite(kv.v).sum() == 16


def test_a_slot_outside_the_pool_is_our_error_and_writes_nothing():
    turns = ops.rope_table(np.arange(2, dtype=np.int32), np.ones(4))
    for slot in (PAGES * PAGE, -2):
        kv = pool([3, slot], 1, 8)
        with pytest.raises(EngineError, match=str(slot)):
            ops.rotate_and_store(wide(1, 2, 32), kv, turns, 2)
        assert np.isnan(kv.k).all()


def test_wrong_arrays_are_named():
    turns = ops.rope_table(np.arange(3, dtype=np.int32), np.ones(4))
    kv, qkv = pool([1, 2, 3], 1, 8), wide(1, 3, 32)
    with pytest.raises(ShapeError, match=r"qkv must be \[3, 40\]"):
        ops.rotate_and_store(qkv, kv, turns, 3)
    with pytest.raises(UnsupportedDtype, match="qkv"):
        ops.rotate_and_store(qkv.astype(np.float64), kv, turns, 2)
    with pytest.raises(ShapeError, match="cos"):
        ops.rotate_and_store(qkv, kv, (turns[0][:2], turns[1]), 2)
    with pytest.raises(ShapeError, match="head has 8"):
        ops.rotate_and_store(qkv, kv, ops.rope_table(np.arange(3, dtype=np.int32), np.ones(5)), 2)
    with pytest.raises(ShapeError, match="both normalised, or neither"):
        ops.rotate_and_store(qkv, kv, turns, 2, q_norm=wide(1, 8))
    with pytest.raises(ShapeError, match="k_norm"):
        ops.rotate_and_store(qkv, kv, turns, 2, q_norm=wide(1, 8), k_norm=wide(1, 7))


def test_no_rows_are_no_work():
    turns = ops.rope_table(np.arange(0, dtype=np.int32), np.ones(4))
    assert ops.rotate_and_store(wide(1, 0, 32), pool([], 1, 8), turns, 2).shape == (0, 2, 8)
