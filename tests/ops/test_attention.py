"""Attention equals its oracle, and no way of cutting, placing or sharing a sequence moves a bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ops.cpus import cpu, every_cpu
from tests.ops.paged import Paged, bits, paged
from zerokl import _native
from zerokl.errors import EngineError, ShapeError, UnsupportedDtype
from zerokl.ops import reference
from zerokl.ops.attention import attention
from zerokl.ops.kv import F32, LayerKV, Ragged, store_kv

RULES = {
    "plain": {},
    "window": {"window": 20},
    "window across chunks": {"window": 515},
    "softcap": {"softcap": 5.0},
    "sinks": {"sinks": np.array([-np.inf, 0.5, 3, -2, 9, 1], np.float32)},
    "all": {"window": 40, "softcap": 9.0, "sinks": np.arange(6, dtype=np.float32)},
}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize(
    ("shape", "lengths", "starts"),
    [
        # 6 query heads on 2, 3 or 6 key heads; sizes with and without whole vectors; pages of whole vectors and not
        ({"kv_heads": 2, "size": 16, "page_size": 16}, (5, 40, 33), (0, 39, 3)),
        ({"kv_heads": 6, "size": 20, "page_size": 48}, (7, 530), (0, 500)),
        ({"kv_heads": 3, "size": 24, "page_size": 1}, (35, 521), (11, 520)),
        ({"kv_heads": 1, "size": 8, "page_size": 7}, (1, 18), (0, 2)),
    ],
)
def test_equals_the_reference_on_every_cpu(rule, shape, lengths, starts):
    pool = paged(lengths, **shape)
    fill(pool)
    parts = [(s, start, length) for s, (start, length) in enumerate(zip(starts, lengths, strict=True))]
    q, kv = pool.rows(pool.queries, parts), pool.kv(parts)
    expected = reference.attention(q, kv, 0.25, **rule)
    assert np.isfinite(expected).all()
    for name in every_cpu():
        assert bits(attention(q, kv, 0.25, **rule)) == bits(expected), name


def test_heads_of_64_in_pages_of_64_equal_the_reference():
    pool = paged((150,), heads=9, kv_heads=3, size=64, page_size=64)
    fill(pool)
    q, kv = pool.rows(pool.queries, [(0, 100, 150)]), pool.kv([(0, 100, 150)])
    expected = reference.attention(q, kv, 0.125)
    for name in every_cpu():
        assert bits(attention(q, kv, 0.125)) == bits(expected), name


@pytest.mark.parametrize("rule", [{}, {"window": 200, "softcap": 20.0}], ids=["plain", "window"])
def test_is_the_mathematical_attention(rule):
    pool = paged((1100,), seed=3)
    fill(pool)
    part = (0, 1000, 1100)
    found = pool.step([part], **rule)[0].reshape(100, 6, 16)
    exact = plain_attention(pool, part, **rule)
    # Rounding of a few hundred f32 additions of numbers below 4: measured 7e-7.
    assert np.abs(found - exact).max() < 4e-6


def plain_attention(pool: Paged, part: tuple[int, int, int], window: int = 10**9, softcap: float | None = None) -> F32:
    """In float64, by the textbook."""
    s, start, end = part
    q, k = pool.queries[s][start:end].astype(np.float64), pool.keys[s][:end].astype(np.float64).repeat(3, axis=1)
    scores = np.einsum("thd,jhd->htj", q, k) * 0.25
    if softcap is not None:
        scores = np.tanh(scores / softcap) * softcap
    positions, keys = np.arange(start, end)[:, None], np.arange(end)
    scores[:, (keys > positions) | (keys <= positions - window)] = -np.inf
    p = np.exp(scores - scores.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    return np.einsum("htj,jhd->thd", p, pool.values[s][:end].astype(np.float64).repeat(3, axis=1))


# --- plan-independence ---------------------------------------------------------------------------------------------

LENGTHS = (1030, 17, 70)
"""Past two chunk boundaries; past one page; past one block of rows."""


def whole(rule: dict[str, object] | None = None) -> list[F32]:
    """Each sequence alone, in one prefill, on its own pool."""
    pool = paged(LENGTHS)
    return [pool.step([(s, 0, length)], **(rule or {}))[0] for s, length in enumerate(LENGTHS)]


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_cuts_pages_and_neighbours_give_the_same_bits(data):
    rule = data.draw(st.sampled_from([{}, {"window": 33, "softcap": 8.0}]))
    page_size = data.draw(st.sampled_from([1, 16, 24, 64]))
    pool = paged(LENGTHS, page_size=page_size, page_seed=data.draw(st.integers(0, 9)))
    done = [0] * len(LENGTHS)
    found: list[list[F32]] = [[] for _ in LENGTHS]
    while unfinished := [s for s, length in enumerate(LENGTHS) if done[s] < length]:
        chosen = data.draw(st.lists(st.sampled_from(unfinished), min_size=1, unique=True))
        parts = []
        for s in chosen:
            rest = LENGTHS[s] - done[s]
            count = data.draw(st.sampled_from([1, 2, 15, 16, 17, 129, 512, 1030]))
            parts.append((s, done[s], done[s] + min(count, rest)))
        with cpu(data.draw(st.sampled_from(_native.isas()[:2])), data.draw(st.sampled_from([1, 2, 16]))):
            results = pool.step(parts, **rule)
        for (s, _, end), y in zip(parts, results, strict=True):
            found[s].append(y)
            done[s] = end
        if sum(map(len, found)) > 60:  # token by token is the next test
            parts = [(s, done[s], LENGTHS[s]) for s in range(len(LENGTHS)) if done[s] < LENGTHS[s]]
            for (s, _, end), y in zip(parts, pool.step(parts, **rule) if parts else [], strict=True):
                found[s].append(y)
                done[s] = end
    for s, expected in enumerate(whole(rule)):
        assert bits(np.concatenate(found[s])) == bits(expected)


def test_token_by_token_gives_the_bits_of_one_prefill():
    pool = paged(LENGTHS, page_size=64, page_seed=5)
    expected = whole()
    for position in range(max(LENGTHS)):
        parts = [(s, position, position + 1) for s, length in enumerate(LENGTHS) if position < length]
        for (s, _, _), y in zip(parts, pool.step(parts), strict=True):
            assert bits(y[0]) == bits(expected[s][position]), (s, position)


def test_a_long_decode_split_over_threads_gives_the_bits_of_one_thread():
    pool = paged((2100,), page_size=64)
    fill(pool)
    part = [(0, 2099, 2100)]
    with cpu(_native.isa(), 1):
        expected = pool.step(part)[0]
    for threads in (2, 3, 64):
        with cpu(_native.isa(), threads):
            assert bits(pool.step(part)[0]) == bits(expected), threads


def test_scores_that_rise_and_fall_by_chunks_keep_their_bits():
    """Peaked, rising and falling scores move the maximum at every merge, or never."""
    for direction in (1, -1):
        pool = paged((1300,), size=16)
        ramp = np.linspace(-6, 6, 1300, dtype=np.float32)[:, None, None] * direction
        pool.keys[0] = pool.keys[0] * np.float32(0.1) + ramp
        pool.queries[0] = np.abs(pool.queries[0])
        fill(pool)
        q, kv = pool.rows(pool.queries, [(0, 1290, 1300)]), pool.kv([(0, 1290, 1300)])
        expected = reference.attention(q, kv, 0.25)
        for name in every_cpu():
            assert bits(attention(q, kv, 0.25)) == bits(expected), name


def test_a_chunk_whose_scores_are_all_minus_infinity_counts_nothing():
    pool = paged((520,))
    pool.queries[0][:], pool.keys[0][:512] = 10, -3e38
    fill(pool)
    q, kv = pool.rows(pool.queries, [(0, 510, 520)]), pool.kv([(0, 510, 520)])
    expected = reference.attention(q, kv, 0.25)
    assert np.isnan(expected[:2]).all()  # 0 / 0: these rows have nothing to look at
    assert np.isfinite(expected[2:]).all()
    for name in every_cpu():
        assert bits(attention(q, kv, 0.25)[2:]) == bits(expected[2:]), name


def test_even_the_sign_of_a_zero_does_not_depend_on_the_neighbouring_rows():
    """Underflow leaves a -0 in the second chunk. Merging a third one, which only the neighbours see, would give +0."""
    pool = paged((1030,))
    pool.queries[0][:], pool.keys[0][:], pool.values[0][:] = 1, 0, 0
    pool.values[0][:512], pool.keys[0][512] = -(2.0**-149), 10
    fill(pool)
    together = pool.step([(0, 1010, 1030)])[0]
    assert not together.any()
    assert np.signbit(together[:14]).all()
    assert not np.signbit(together[14:]).any()
    q, kv = pool.rows(pool.queries, [(0, 1010, 1030)]), pool.kv([(0, 1010, 1030)])
    assert bits(reference.attention(q, kv, 0.25)) == bits(together)
    for position in range(1010, 1030):
        assert bits(pool.step([(0, position, position + 1)])[0][0]) == bits(together[position - 1010])


# --- what a row may not see ----------------------------------------------------------------------------------------


def test_infinities_and_nans_that_a_row_does_not_see_do_not_reach_it():
    """The next row of the same segment sees them: a masked key must be skipped, not multiplied by zero."""
    pool = paged((40,))
    expected = pool.step([(0, 0, 40)], window=10)[0]
    for poison in (np.nan, np.inf):
        dirty = paged((40,))
        dirty.keys[0][21], dirty.values[0][21] = poison, poison
        found = dirty.step([(0, 0, 40)], window=10)[0]
        clean = np.r_[0:21, 31:40]
        assert bits(found[clean]) == bits(expected[clean])
        assert not np.isfinite(found[21:31]).any()  # so the poison is there


def test_a_padding_row_is_zero_and_leaves_its_neighbours_alone():
    pool = paged((20,))
    expected = pool.step([(0, 0, 20)])[0]
    kv = pool.kv([(0, 0, 20)])
    ragged = kv.ragged
    padded = LayerKV(
        kv.k,
        kv.v,
        Ragged(
            np.append(ragged.positions, np.int32(-1)),
            np.append(ragged.slots, np.int32(-1)),
            np.array([0, 20, 21], np.int32),
            np.concatenate([ragged.page_table, np.full_like(ragged.page_table, -1)]),
            ragged.page_size,
        ),
    )
    q = np.concatenate([pool.queries[0], np.full_like(pool.queries[0][:1], np.nan)])
    found = attention(q, padded, 0.25)
    assert bits(found[:20]) == bits(expected)
    assert bits(found[20]) == bits(np.zeros_like(found[20]))
    assert bits(reference.attention(q, padded, 0.25)) == bits(found)


def test_a_step_of_no_rows_is_empty():
    pool = paged((5,))
    kv = LayerKV(
        pool.k, pool.v, Ragged(*(np.empty(0, np.int32),) * 2, np.zeros(1, np.int32), np.empty((0, 1), np.int32), 16)
    )
    assert attention(np.empty((0, 6, 16), np.float32), kv, 0.25).shape == (0, 96)


# --- the guards see their defects ----------------------------------------------------------------------------------


def test_another_chunk_size_or_another_order_of_keys_would_be_seen(monkeypatch):
    pool = paged((1030,))
    expected = pool.step([(0, 0, 1030)])[0][-4:]
    q, kv = pool.rows(pool.queries, [(0, 1026, 1030)]), pool.kv([(0, 1026, 1030)])
    assert bits(reference.attention(q, kv, 0.25)) == bits(expected)
    monkeypatch.setattr(reference, "CHUNK", 256)
    assert (reference.attention(q, kv, 0.25) != expected).mean() > 0.2


def test_a_stale_page_would_be_seen():
    pool = paged((40,), page_size=16)
    expected = pool.step([(0, 0, 40)])[0]
    pool.page_table[0, 0] = np.setdiff1d(np.arange(len(pool.k)), pool.page_table)[0]
    q, kv = pool.queries[0], pool.kv([(0, 0, 40)])
    assert np.isnan(attention(q, kv, 0.25)).all()  # a page that nobody filled
    assert np.isfinite(expected).all()


# --- errors --------------------------------------------------------------------------------------------------------


def test_a_page_outside_the_pool_is_an_engine_error():
    pool = paged((40,))
    pool.page_table[0, 2] = 99
    with pytest.raises(EngineError, match="page 99 of a pool of 6"):
        attention(pool.queries[0], pool.kv([(0, 0, 40)]), 0.25)
    pool.page_table = pool.page_table[:, :2]
    kv = pool.kv([(0, 0, 30)])
    kv.ragged.positions[:] += 10
    with pytest.raises(EngineError, match="sees 40 keys but names 2 pages"):
        attention(pool.queries[0][:30], kv, 0.25)


def test_row_starts_that_do_not_cover_the_rows_are_an_engine_error():
    pool = paged((40,))
    for starts in ([1, 40], [0, 39], [0, 41], [0, -1]):
        kv = pool.kv([(0, 0, 40)])
        kv.ragged.row_starts[:] = starts
        with pytest.raises(EngineError, match="of segment 0 in a step of 40 rows"):
            attention(pool.queries[0], kv, 0.25)


def test_wrong_shapes_and_types_are_named():
    pool = paged((4,))
    kv = pool.kv([(0, 0, 4)])
    with pytest.raises(ShapeError, match="5 query heads can't share 2 key heads"):
        attention(np.zeros((4, 5, 16), np.float32), kv, 0.25)
    with pytest.raises(ShapeError, match=r"q must be \[4, 6, 16\]"):
        attention(np.zeros((3, 6, 16), np.float32), kv, 0.25)
    with pytest.raises(UnsupportedDtype, match="q must be float32, not float64"):
        attention(np.zeros((4, 6, 16)), kv, 0.25)
    with pytest.raises(ShapeError, match="a window holds at least the token itself"):
        attention(pool.queries[0], kv, 0.25, window=0)
    with pytest.raises(ShapeError, match=r"sinks must be \[6\]"):
        attention(pool.queries[0], kv, 0.25, sinks=np.zeros(2, np.float32))


def fill(pool: Paged) -> None:
    """Store all keys and values of all sequences."""
    parts = [(s, 0, len(keys)) for s, keys in enumerate(pool.keys)]
    store_kv(pool.kv(parts), pool.rows(pool.keys, parts), pool.rows(pool.values, parts))
