"""Recurrences: bits, and sequences cut anywhere, with checkpoints on the way."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ops.cpus import cpu, every_cpu
from tests.ops.numbers import same
from zerokl import _native, ops
from zerokl.errors import ShapeError
from zerokl.ops import reference_hybrid

LENGTH, HEADS, GROUPS, DEPTH, WIDTH = 30, 4, 2, 24, 20


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def inputs(kind: str, rows: slice = slice(None)) -> list[np.ndarray]:
    """The kind's arguments before the state, for some rows of one sequence."""
    q, k = normal(1, LENGTH, GROUPS, DEPTH) / 5, normal(2, LENGTH, GROUPS, DEPTH) / 5
    v, gates = normal(3, LENGTH, HEADS, WIDTH), np.random.default_rng(4).random((2, LENGTH, HEADS), np.float32)
    arrays = [q, k, v, *gates] if kind == "gated_delta" else [v, q, k, *gates]
    cut = [np.ascontiguousarray(array[rows]) for array in arrays]
    return cut if kind == "gated_delta" else [*cut, normal(5, HEADS)]


def one_sequence(kind: str, states: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    return getattr(reference_hybrid, kind)(*inputs(kind), states)


KINDS = ("gated_delta", "selective_scan")


@pytest.mark.parametrize("kind", KINDS)
def test_every_cpu_equals_the_reference(kind):
    before = normal(6, HEADS, DEPTH, WIDTH)
    y, after = one_sequence(kind, before)
    for name in every_cpu():
        state = state_of([(0, LENGTH)], {7: 2, LENGTH: 3})
        state.pool[0] = before
        assert same(getattr(ops, kind)(*inputs(kind), state), y), name
        assert same(state.pool[0], after[-1]), name
        assert same(state.pool[2], after[6]), name
        assert same(state.pool[3], after[-1]), name


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40)
@given(data=st.data())
def test_a_sequence_cut_anywhere_in_any_company_has_the_same_bits(kind, data):
    zeros = np.zeros((HEADS, DEPTH, WIDTH), np.float32)
    expected, after = one_sequence(kind, zeros)
    cuts = sorted(data.draw(st.sets(st.integers(1, LENGTH - 1), max_size=6)))
    state, found = zeros, []
    for start, end in zip([0, *cuts], [*cuts, LENGTH], strict=True):
        mark = data.draw(st.integers(start + 1, end))
        neighbour = data.draw(st.integers(1, 5))
        step = state_of([(0, neighbour), (start, end)], {mark - start + neighbour: 2}, segment=1)
        step.pool[0], step.pool[1] = normal(8, *zeros.shape), state
        both = [
            np.concatenate([a[:neighbour], b]) if len(b) == end - start else b
            for a, b in zip(inputs(kind), inputs(kind, slice(start, end)), strict=True)
        ]
        if kind == "selective_scan":
            both[-1] = inputs(kind)[-1]
        with cpu(data.draw(st.sampled_from(_native.isas())), data.draw(st.integers(1, 3))):
            found.append(getattr(ops, kind)(*both, step)[neighbour:])
        state = step.pool[1].copy()
        assert same(step.pool[2], after[mark - 1])
    assert same(np.concatenate(found), expected)


def state_of(parts: list[tuple[int, int]], writes: dict[int, int], segment: int = 0) -> ops.RecurrentState:
    """Segments of these positions in slots 0, 1, ...; `writes`: step row -> slot, of one segment."""
    positions = np.concatenate([np.arange(start, end) for start, end in parts]).astype(np.int32)
    starts = np.cumsum([0, *(end - start for start, end in parts)]).astype(np.int32)
    segments = np.full(len(writes), segment, np.int32)
    rows, slots = np.array(list(writes), np.int32), np.array(list(writes.values()), np.int32)
    step = ops.StepStates(positions, starts, np.arange(len(parts), dtype=np.int32), segments, rows, slots)
    pool = np.full((4, HEADS, DEPTH, WIDTH), np.nan, np.float32)
    return ops.RecurrentState(pool, np.zeros((4, 1, 0), np.float32), step)


def test_a_sum_in_another_order_would_be_seen():
    """The guard's own test: the formula for a whole chunk, sum of decayed contributions, gives other bits."""
    zeros = np.zeros((HEADS, DEPTH, WIDTH), np.float32)
    x, b, c, step, decay, skip = inputs("selective_scan")
    expected, _ = one_sequence("selective_scan", zeros)
    share = HEADS // GROUPS
    b, c = b.repeat(share, axis=1), c.repeat(share, axis=1)
    kept = np.cumprod(decay, axis=0)
    found = np.zeros_like(x)
    for t in range(LENGTH):
        for s in range(t + 1):
            weight = np.einsum("hn,hn->h", c[t], b[s]) * (kept[t] / kept[s]) * step[s]
            found[t] += weight[:, None] * x[s]
    found += skip[:, None] * x
    assert np.allclose(found, expected, atol=1e-4)
    assert (found != expected).mean() > 0.3


def test_time_steps_equal_the_reference_and_float64():
    raw, bias, rate = normal(1, 50, 19) * 8, normal(2, 19) * 4, normal(3, 19)
    step, decay = reference_hybrid.time_steps(raw, bias, rate, (0.001, 5.0))
    for name in every_cpu():
        found = ops.time_steps(raw, bias, rate, (0.001, 5.0))
        assert same(found[0], step), name
        assert same(found[1], decay), name
    step, decay = ops.time_steps(raw, bias, rate)
    exact = np.log1p(np.exp((raw + bias).astype(np.float64)))
    assert (np.abs(step - exact) / exact).max() < 4e-7
    kept = np.exp(-np.exp(rate.astype(np.float64)) * exact)
    assert np.abs(decay - kept).max() < 4e-7


def test_wrong_arrays():
    state = state_of([(0, LENGTH)], {})
    with pytest.raises(ShapeError, match="beta"):
        ops.gated_delta(*inputs("gated_delta")[:4], normal(1, LENGTH, 3), state)
    longer = ops.RecurrentState(state.pool, np.zeros((4, 64, 0), np.float32), state.step)
    with pytest.raises(ShapeError, match="chunks of 1 token, not of 64"):
        ops.gated_delta(*inputs("gated_delta"), longer)
