"""Scores with a bias by distance: the reference's bits, float64's values, and no trace of how rows are cut."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ops.cpus import cpu, every_cpu
from tests.ops.paged import bits, paged
from tests.ops.test_attention import fill
from zerokl import _native
from zerokl.errors import ShapeError
from zerokl.ops import reference
from zerokl.ops.attention import attention


def bias_of(rows: int, extent: int, heads: int = 6, rank: int = 5) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(7)
    return tuple(rng.standard_normal(shape).astype(np.float32) for shape in ((rows, heads, rank), (rank, extent)))


# Extents: the token alone, less than a vector, more, beyond a chunk.
@pytest.mark.parametrize("extent", [1, 9, 33, 600])
@pytest.mark.parametrize("rule", [{}, {"window": 20, "softcap": 5.0}], ids=["plain", "window"])
def test_equals_the_reference_on_every_cpu(extent, rule):
    pool = paged((40, 530), page_size=16)
    fill(pool)
    parts = [(0, 3, 40), (1, 505, 530)]
    q, kv = pool.rows(pool.queries, parts), pool.kv(parts)
    bias = bias_of(len(q), extent)
    expected = reference.attention(q, kv, 0.25, bias=bias, **rule)
    for name in every_cpu():
        assert bits(attention(q, kv, 0.25, bias=bias, **rule)) == bits(expected), name
    assert bits(attention(q, kv, 0.25, **rule)) != bits(expected)


def test_is_the_mathematical_bias():
    pool = paged((100,), seed=3)
    fill(pool)
    queries, profile = bias_of(100, 30)
    found = attention(pool.queries[0], pool.kv([(0, 0, 100)]), 0.25, bias=(queries, profile)).reshape(100, 6, 16)
    k, v = (array[0].astype(np.float64).repeat(3, axis=1) for array in (pool.keys, pool.values))
    scores = np.einsum("thd,jhd->htj", pool.queries[0].astype(np.float64), k) * 0.25
    distance = np.arange(100)[:, None] - np.arange(100)
    by_distance = np.einsum("thb,be->hte", queries.astype(np.float64), profile.astype(np.float64))
    near = (distance >= 0) & (distance < 30)
    rows = np.broadcast_to(np.where(near, distance, 0), scores.shape)
    scores += np.where(near, np.take_along_axis(by_distance, rows, axis=2), 0)
    scores[:, distance < 0] = -np.inf
    p = np.exp(scores - scores.max(axis=-1, keepdims=True))
    exact = np.einsum("htj,jhd->thd", p / p.sum(axis=-1, keepdims=True), v)
    assert np.abs(found - exact).max() < 4e-6


@settings(max_examples=30)
@given(st.data())
def test_any_cut_and_company_has_the_same_bits(data):
    length, page_size = 530, data.draw(st.sampled_from([7, 16, 64]))
    pool = paged((length, 60), page_size=page_size, page_seed=data.draw(st.integers(0, 5)))
    fill(pool)
    bias = bias_of(length, 40)
    whole = alone()
    start = data.draw(st.integers(0, length - 1))
    end = data.draw(st.integers(start + 1, min(length, start + 40)))
    parts = [(1, 5, 11), (0, start, end)]
    queries = np.concatenate([bias[0][:6], bias[0][start:end]])
    with cpu(data.draw(st.sampled_from(_native.isas())), data.draw(st.integers(1, 3))):
        y = attention(pool.rows(pool.queries, parts), pool.kv(parts), 0.25, bias=(queries, bias[1]))
    assert bits(y[6:]) == bits(whole[start:end])


def alone() -> np.ndarray:
    if not STORED:
        pool = paged((530, 60), page_size=16)
        fill(pool)
        STORED.append(attention(pool.queries[0], pool.kv([(0, 0, 530)]), 0.25, bias=bias_of(530, 40)))
    return STORED[0]


STORED: list[np.ndarray] = []


def test_wrong_arrays():
    pool = paged((20,))
    q, kv = pool.queries[0], pool.kv([(0, 0, 20)])
    with pytest.raises(ShapeError, match="bias's queries"):
        attention(q, kv, 0.25, bias=bias_of(19, 5))
    with pytest.raises(ShapeError, match="at least the token itself"):
        attention(q, kv, 0.25, bias=bias_of(20, 0))
