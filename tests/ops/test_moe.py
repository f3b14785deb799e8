"""Routing and experts: bits, ties, company."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ops.cpus import cpu, every_cpu
from tests.ops.numbers import same, wide
from zerokl import _native, ops
from zerokl.errors import EngineError, ShapeError
from zerokl.ops import reference, reference_hybrid

RULES = {
    "softmax": {"normalised": False},
    "softmax of the chosen": {"scale": 2.5},
    "sigmoid": {"scores": "sigmoid"},
    "shared sink": {"scores": "sigmoid", "shared": 2, "bias": np.linspace(-1, 1, 18, dtype=np.float32), "scale": 8.0},
}


def logits_of(rows: int, seed: int = 0, spread: float = 3.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((rows, 20)) * spread).astype(np.float32)


def equal(found, expected) -> bool:
    return bool(np.array_equal(found[0], expected[0]) and same(found[1], expected[1]))


@pytest.mark.parametrize("rule", [{k: v for k, v in rule.items() if k != "shared"} | rule for rule in RULES.values()])
@pytest.mark.parametrize("spread", [3.0, 300.0])
def test_routes_equal_the_reference_on_every_cpu(rule, spread):
    logits = logits_of(40, spread=spread)
    expected = reference_hybrid.route(logits, 5, **rule)
    for name in every_cpu():
        assert equal(ops.route(logits, 5, **rule), expected), name


def test_weights_are_those_of_float64():
    logits = logits_of(200)
    ids, weights = ops.route(logits, 4)
    exact = np.exp(np.take_along_axis(logits, ids, axis=1).astype(np.float64))
    exact /= exact.sum(axis=1, keepdims=True)
    assert np.abs(weights - exact).max() < 3e-7
    ids, weights = ops.route(logits, 4, scores="sigmoid", shared=2)
    chosen = np.hstack([np.take_along_axis(logits, ids, axis=1), logits[:, 18:]]).astype(np.float64)
    exact = 1 / (1 + np.exp(-chosen))
    exact /= exact.sum(axis=1, keepdims=True)
    assert np.abs(weights - exact).max() < 3e-7


def test_tiny_sigmoids_still_share_all_of_the_weight():
    _, weights = ops.route(np.full((1, 6), -300, np.float32), 2, scores="sigmoid", shared=1)
    assert np.allclose(weights, 1 / 3)


def test_ties_go_to_the_lower_id():
    logits = np.zeros((1, 8), np.float32)
    logits[0, [3, 6]] = 1
    assert ops.route(logits, 4)[0].tolist() == [[3, 6, 0, 1]]
    assert ops.route(logits, 4, scores="sigmoid")[0].tolist() == [[3, 6, 0, 1]]


def test_the_bias_chooses_and_does_not_weigh():
    logits, bias = logits_of(30), np.zeros(20, np.float32)
    bias[7] = 100
    ids, weights = ops.route(logits, 2, scores="sigmoid", bias=bias)
    assert (ids[:, 0] == 7).all()
    plain = 1 / (1 + np.exp(-np.take_along_axis(logits, ids, axis=1)))
    assert np.allclose(weights, plain / plain.sum(axis=1, keepdims=True), atol=1e-6)


def mixture(width: int = 40, hidden: int = 24, count: int = 6, dtype: str = "float32"):
    first = [wide(10 + i, 2 * hidden, width) / np.float32(64) for i in range(count)]
    second = [wide(30 + i, width, hidden) / np.float32(64) for i in range(count)]
    packed = [ops.pack(w, dtype) for w in first], [ops.pack(w, dtype) for w in second]
    exact = [reference.pack(w, dtype) for w in first], [reference.pack(w, dtype) for w in second]
    return packed, exact


def tokens(rows: int, top: int, count: int = 6, seed: int = 0):
    rng = np.random.default_rng(seed)
    chosen = np.stack([rng.permutation(count)[:top] for _ in range(rows)]).astype(np.int32).reshape(rows, top)
    return wide(seed, rows, 40), chosen, rng.random((rows, top)).astype(np.float32)


@pytest.mark.parametrize(("rows", "top", "dtype"), [(1, 2, "float32"), (1, 6, "bfloat16"), (23, 3, "bfloat16")])
def test_experts_equal_the_reference_on_every_cpu(rows, top, dtype):
    packed, exact = mixture(dtype=dtype)
    x, chosen, weights = tokens(rows, top)
    residual = wide(5, rows, 40)
    expected = reference_hybrid.experts(x, *exact, chosen, weights, residual=residual)
    for name in every_cpu():
        assert same(ops.experts(x, *packed, chosen, weights, residual=residual), expected), name


@pytest.mark.parametrize("ends", [(16, 24), (8, 16, 24), (4, 8, 12, 16, 24)])
def test_leaves_of_the_hidden_width_are_summed_apart_and_added_by_the_tree(ends):
    packed, exact = mixture()
    cut = packed[0], [ops.pack(weight, "float32", leaves=ends) for weight in exact[1]]
    x, chosen, weights = tokens(23, 3)
    residual = wide(5, 23, 40)
    expected = reference_hybrid.experts(x, *exact, chosen, weights, residual=residual, leaves=ends)
    assert not same(ops.experts(x, *packed, chosen, weights, residual=residual), expected)
    for name in every_cpu():
        assert same(ops.experts(x, *cut, chosen, weights, residual=residual), expected), name
        alone = ops.experts(x[4:5], *cut, chosen[4:5], weights[4:5], residual=residual[4:5])
        assert same(alone, expected[4:5]), name
    crowd = [np.concatenate([part] * 30) for part in (x, chosen, weights, residual)]  # three blocks of tokens
    assert same(ops.experts(*crowd[:1], *cut, *crowd[1:3], residual=crowd[3])[-23:], expected)


@settings(max_examples=40)
@given(st.data())
def test_a_token_never_sees_who_shares_its_experts(data):
    packed, _ = mixture()
    rows = data.draw(st.sampled_from([2, 5, 13, 97, 1100]), "rows")  # 1,024 tokens are a block
    top = data.draw(st.integers(1, 6), "top")
    x, chosen, weights = tokens(rows, top, seed=rows)
    crowd = data.draw(st.booleans(), "all to one expert")
    if crowd:
        chosen[:, 0] = 0
    row = data.draw(st.integers(0, rows - 1), "row")
    one = slice(row, row + 1)
    alone = ops.experts(x[one], *packed, chosen[one], weights[one])
    with cpu(data.draw(st.sampled_from(_native.isas())), data.draw(st.integers(1, 3))):
        assert same(ops.experts(x, *packed, chosen, weights)[one], alone)


def test_the_order_of_the_sum_is_the_choice_and_an_order_by_arrival_would_be_seen():
    packed, exact = mixture()
    x, chosen, weights = tokens(50, 5)
    expected = reference_hybrid.experts(x, *exact, chosen, weights)
    turned = reference_hybrid.experts(x, *exact, chosen[:, ::-1].copy(), weights[:, ::-1].copy())
    assert (turned != expected).mean() > 0.2
    assert same(ops.experts(x, *packed, chosen, weights), expected)


def test_empty_and_wrong_arrays():
    packed, _ = mixture()
    x, chosen, weights = tokens(3, 2)
    assert ops.experts(x[:0], *packed, chosen[:0], weights[:0]).shape == (0, 40)
    assert ops.route(logits_of(0), 3)[0].shape == (0, 3)
    with pytest.raises(EngineError, match="expert 6 is not one of 6"):
        ops.experts(x, *packed, np.full_like(chosen, 6), weights)
    with pytest.raises(ShapeError, match="21 experts of 20"):
        ops.route(logits_of(1), 21)
    with pytest.raises(ShapeError, match="weights"):
        ops.experts(x, *packed, chosen, weights[:, :1].copy())
    with pytest.raises(ShapeError, match="experts of shapes"):
        ops.experts(x, packed[1], packed[0], chosen, weights)
