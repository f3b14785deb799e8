"""Our exact statistics against scipy's, and against the published table of gates."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from zerokl.evals.perplexity import summarise
from zerokl.evals.report import make_gate
from zerokl.evals.statistics import Gate, McNemar, at_least, at_most, binomial_pmf, interval, paired_mean

counts = st.integers(1, 1319).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n)))
shares = st.floats(0.001, 0.999)


@given(counts=counts, p=shares)
def test_binomial_tails_are_scipys(counts: tuple[int, int], p: float) -> None:
    n, k = counts
    assert binomial_pmf(k, n, p) == pytest.approx(stats.binom.pmf(k, n, p), rel=1e-9, abs=1e-290)
    assert at_most(k, n, p) == pytest.approx(stats.binom.cdf(k, n, p), rel=1e-9, abs=1e-290)
    assert at_least(k, n, p) == pytest.approx(stats.binom.sf(k - 1, n, p), rel=1e-9, abs=1e-290)


@pytest.mark.parametrize(("n", "k"), [(1, 0), (1, 1), (10, 3), (200, 0), (200, 180), (200, 200), (1319, 1293)])
def test_the_interval_is_scipys_exact_one(n: int, k: int) -> None:
    expected = stats.binomtest(k, n).proportion_ci(method="exact")
    assert interval(k, n) == pytest.approx((expected.low, expected.high), abs=1e-12)


@pytest.mark.parametrize(("lost", "won"), [(0, 0), (10, 0), (0, 10), (7, 3), (3, 7), (5, 5), (30, 12)])
def test_mcnemar_is_scipys_binomial_test(lost: int, won: int) -> None:
    found = McNemar(lost, won)
    if lost + won:
        assert found.p_worse == pytest.approx(stats.binomtest(lost, lost + won, alternative="greater").pvalue)
        assert found.p_two_sided == pytest.approx(stats.binomtest(lost, lost + won).pvalue)
    else:
        assert (found.p_worse, found.p_two_sided) == (1.0, 1.0)


def test_ten_losses_without_a_win_are_one_in_1024() -> None:
    assert McNemar(10, 0).p_worse == pytest.approx(2**-10)


@given(st.lists(st.floats(-50, 50), min_size=2, max_size=40).filter(lambda values: len(set(values)) > 1))
def test_the_paired_mean_is_scipys_t(differences: list[float]) -> None:
    found = paired_mean(differences)
    assert found.mean == pytest.approx(math.fsum(differences) / len(differences))
    assert found.error == pytest.approx(stats.sem(differences), rel=1e-6)


def test_equal_runs_have_no_error_at_all() -> None:
    assert (paired_mean([0.0, 0.0]).error, paired_mean([0.0, 0.0]).t) == (0.0, 0.0)
    with pytest.raises(ValueError, match="at least 2"):
        paired_mean([1.0])


@pytest.mark.parametrize(
    ("n", "accuracy", "probability"),
    [
        (100, 0.90, 8e-4),
        (182, 0.90, 2.4e-5),
        (200, 0.90, 7e-6),
        (200, 0.85, 0.02),
        (200, 0.82, 0.20),
        (200, 0.80, 0.46),
    ],
)
def test_the_usual_gate_at_080_has_the_published_power(n: int, accuracy: float, probability: float) -> None:
    """Rounded as published: these are 45 % of a unit of its last digit at most."""
    assert make_gate(n, "0.8").fails_at(accuracy) == pytest.approx(probability, rel=0.13)


def test_a_score_at_the_threshold_passes_and_the_threshold_is_what_was_written() -> None:
    gate = make_gate(200, "0.8")
    assert (gate.least, gate.passes(160), gate.passes(159)) == (160, True, False)
    assert make_gate(10, "0.7").least == 7  # as float64, 0.7 * 10 is 7 by luck only
    assert make_gate(100, "0.29").least == 29  # as float64, 0.29 * 100 is 28.999999999999996, and 0.07 * 100 is above 7
    assert make_gate(100, "0.07").least == 7


def test_what_a_gate_catches_is_caught_with_that_probability() -> None:
    gate = Gate(200, Fraction(4, 5))
    for power in (0.5, 0.95):
        assert gate.fails_at(gate.caught(power)) == pytest.approx(power)


def test_perplexity_of_a_text_that_is_equally_hard_everywhere_has_no_error() -> None:
    found = summarise([[-1.0, -1.0], [-1.0, -1.0, -1.0]])
    assert (found.tokens, found.value, found.error) == (5, pytest.approx(math.e), 0.0)
    equal = summarise([[-1.0, -2.0], [-3.0, -4.0], [-1.5, -0.5]])
    means = [1.5, 3.5, 1.0]  # for pieces of one length the ratio estimator is the plain standard error
    assert equal.error == pytest.approx(stats.sem(means))
