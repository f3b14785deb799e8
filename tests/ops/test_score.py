"""Logprobs equal their oracle, and each row's depend on that row alone."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.cpus import every_cpu
from zerokl.errors import EngineError, ShapeError, UnsupportedDtype
from zerokl.ops import reference
from zerokl.ops.kv import F32, I32
from zerokl.ops.score import score
from zerokl.types import Logprobs, LogprobSpec


def rows_of(vocabulary: int, seed: int = 0) -> tuple[F32, I32]:
    """Plain, full of ties, full of -inf, one winner far above, all equal, wide."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((6, vocabulary)).astype(np.float32)
    x[1] = np.round(x[1])
    x[2, rng.random(vocabulary) < 0.7] = -np.inf
    x[2, vocabulary // 2] = 1
    x[3, vocabulary // 3] = 200
    x[4] = -0.0
    x[5] *= 1e4
    return x, rng.integers(0, vocabulary, 6).astype(np.int32)


# Below a vector, a vector, odd, a block of 1,024 and one more, many blocks with an odd end; a block of -inf only
@pytest.mark.parametrize("vocabulary", [1, 16, 333, 1024, 1025, 5003])
@pytest.mark.parametrize("num_top", [0, 1, 20, 1024])
def test_equals_the_reference_on_every_cpu(vocabulary, num_top):
    logits, targets = rows_of(vocabulary)
    logits[2, 1024:2048] = -np.inf
    spec = LogprobSpec(num_top, (vocabulary - 1, 0))
    expected = reference.score(logits, targets, spec)
    for name in every_cpu():
        assert score(logits, targets, spec) == expected, name


def test_the_last_bit_of_the_sum_over_blocks_is_that_of_the_reference():
    """The likeliest id has logit 0 and a logprob near 0, which shows every bit of the sum: one fma per block."""
    rng = np.random.default_rng(6)
    logits = (rng.standard_normal((60, 2100)) - rng.uniform(5, 9, (60, 1))).astype(np.float32)
    logits[:, 7] = 0
    targets, spec = np.full(60, 7, np.int32), LogprobSpec()
    expected = reference.score(logits, targets, spec)
    for name in every_cpu():
        assert score(logits, targets, spec) == expected, name


def test_is_the_mathematical_log_softmax():
    logits, targets = rows_of(5003)
    found = column(score(logits, targets, LogprobSpec(ids=tuple(range(5003)))).ids).reshape(6, 5003)
    x = logits.astype(np.float64)
    exact = x - x.max(axis=1, keepdims=True)
    exact = exact - np.log(np.exp(exact).sum(axis=1, keepdims=True))
    finite = np.isfinite(exact)
    assert (found[~finite] == -np.inf).all()
    error = np.abs(np.where(finite, found, 0) - np.where(finite, exact, 0)).max(axis=1)
    assert (error < 1e-6 * np.maximum(1, np.abs(logits).max(axis=1, initial=1, where=finite))).all()


def test_a_row_does_not_depend_on_other_rows_or_on_the_spec():
    logits, targets = rows_of(3000)
    spec = LogprobSpec(5, (7, 8))
    together = score(logits, targets, spec)
    alone = Logprobs()
    for row in range(6):
        alone = alone.joined(score(logits[row : row + 1], targets[row : row + 1], spec))
    assert alone == together
    reverse = score(np.ascontiguousarray(logits[::-1]), np.ascontiguousarray(targets[::-1]), spec)
    assert (column(reverse.chosen)[::-1] == column(together.chosen)).all()
    assert score(logits, targets, LogprobSpec()).chosen == together.chosen
    more = score(logits, targets, LogprobSpec(900, tuple(range(50))))
    assert (column(more.top).reshape(6, 900)[:, :5] == column(together.top).reshape(6, 5)).all()


def test_the_chosen_top_and_asked_columns_hold_the_same_number():
    logits, _ = rows_of(2000)
    targets = logits.argmax(axis=1).astype(np.int32)
    found = score(logits, targets, LogprobSpec(3, tuple(targets.tolist())))
    assert (column(found.top).reshape(6, 3)[:, 0] == column(found.chosen)).all()
    assert (np.diag(column(found.ids).reshape(6, 6)) == column(found.chosen)).all()


def test_ties_go_to_the_lower_id_and_both_zeros_tie():
    logits = np.zeros((1, 40), np.float32)
    logits[0, ::2] = -0.0
    logits[0, 33] = 1
    found = score(logits, np.zeros(1, np.int32), LogprobSpec(6))
    assert np.frombuffer(found.top_ids, "<i4").tolist() == [33, 0, 1, 2, 3, 4]


def test_more_top_ids_than_the_vocabulary_are_all_of_it():
    found = score(np.float32([[1, 3, 2]]), np.zeros(1, np.int32), LogprobSpec(20))
    assert found.num_top == 3
    assert np.frombuffer(found.top_ids, "<i4").tolist() == [1, 2, 0]


def test_no_rows_give_no_columns():
    assert score(np.empty((0, 9), np.float32), np.empty(0, np.int32), LogprobSpec(2, (1,))) == Logprobs(0, 2, 1)


@pytest.mark.parametrize("place", [0, 17, 1023, 1024, 2047, 2999])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_nan_or_an_infinity_is_an_engine_error(place, value):
    logits = np.zeros((3, 3000), np.float32)
    logits[1, place] = value
    for name in every_cpu():
        with pytest.raises(EngineError, match="logits of row 1 hold a NaN"):
            score(logits, np.zeros(3, np.int32), LogprobSpec())
        assert name


def test_a_nan_among_minus_infinities_and_a_row_without_any_logit_are_engine_errors():
    for place, value in ((2050, np.nan), (0, -np.inf)):
        logits = np.full((1, 2100), -np.inf, np.float32)
        logits[0, 0] = 1
        logits[0, place] = value
        with pytest.raises(EngineError, match="nothing but -inf"):
            score(logits, np.zeros(1, np.int32), LogprobSpec(3))


def test_ids_outside_the_vocabulary_are_an_engine_error():
    logits = np.zeros((1, 30), np.float32)
    for target, ids in ((30, ()), (-1, ()), (0, (31,))):
        with pytest.raises(EngineError, match="of a vocabulary of 30"):
            score(logits, np.array([target], np.int32), LogprobSpec(ids=ids))


def test_wrong_shapes_and_types_are_named():
    with pytest.raises(ShapeError, match=r"targets must be \[2\]"):
        score(np.zeros((2, 5), np.float32), np.zeros(1, np.int32), LogprobSpec())
    with pytest.raises(UnsupportedDtype, match="logits must be float32"):
        score(np.zeros((2, 5)), np.zeros(2, np.int32), LogprobSpec())
    with pytest.raises(ShapeError, match="V > 0"):
        score(np.zeros((2, 0), np.float32), np.zeros(2, np.int32), LogprobSpec())


def test_log_of_a_softmax_would_be_seen():
    """The planted defect of the decode path: probabilities first, then their logarithm."""
    logits, targets = rows_of(3000)
    found = column(score(logits, targets, LogprobSpec()).chosen)
    with np.errstate(divide="ignore"):
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        defect = np.log((p / p.sum(axis=1, keepdims=True))[np.arange(6), targets])
    assert (found != defect).sum() >= 2


def column(raw: bytes) -> F32:
    return np.frombuffer(raw, "<f4")
