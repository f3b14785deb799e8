"""Exact statistics of right and wrong: binomial tails, intervals, gates and their power, McNemar's paired test.

Everything counts in exact fractions or sums of logarithms; nothing is approximated by a bell curve, whose tail at 4.5
sigma is several times too small for a skewed binomial. Accuracies of two runs on the same questions are compared pair
by pair: the noise of drawing the questions is in both and cancels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

HALVINGS = 60
"""Of [0, 1], when a probability is searched: beyond float64's resolution near 1."""


def binomial_pmf(k: int, n: int, p: float) -> float:
    """P(X = k) for n draws of probability p."""
    if not 0 <= k <= n:
        return 0.0
    if p in (0.0, 1.0):
        return float(k == n * p)
    chosen = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    return math.exp(chosen + k * math.log(p) + (n - k) * math.log1p(-p))


def at_most(k: int, n: int, p: float) -> float:
    """P(X <= k), summed from the small end so that a tiny tail keeps its digits."""
    return min(1.0, math.fsum(binomial_pmf(i, n, p) for i in range(k + 1)))


def at_least(k: int, n: int, p: float) -> float:
    return min(1.0, math.fsum(binomial_pmf(i, n, p) for i in range(max(0, k), n + 1)))


def interval(k: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Clopper and Pearson's: whatever the true probability, it covers it at least so often."""
    tail = (1 - confidence) / 2
    low = 0.0 if k == 0 else _where(lambda p: at_least(k, n, p), tail)
    high = 1.0 if k == n else _where(lambda p: 1 - at_most(k, n, p), 1 - tail)
    return low, high


def _where(rising: Callable[[float], float], level: float) -> float:
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < level else (low, middle)
    return (low + high) / 2


@dataclass(frozen=True, slots=True)
class Gate:
    """Of n questions at least `least` must be right. A score exactly at the threshold passes."""

    n: int
    threshold: Fraction

    @property
    def least(self) -> int:
        return math.ceil(self.threshold * self.n)

    def passes(self, right: int) -> bool:
        return right >= self.least

    def fails_at(self, accuracy: float) -> float:
        """How likely a model of this true accuracy fails: the false alarm at the reference, else the power."""
        return at_most(self.least - 1, self.n, accuracy)

    def caught(self, power: float) -> float:
        """The highest true accuracy that the gate catches with this probability."""
        return _where(lambda accuracy: 1 - self.fails_at(accuracy), 1 - power)


@dataclass(frozen=True, slots=True)
class McNemar:
    """Questions on which exactly one of two runs was right."""

    lost: int
    """Right in the first run only."""
    won: int
    """Right in the second run only."""

    @property
    def discordant(self) -> int:
        return self.lost + self.won

    @property
    def p_worse(self) -> float:
        """One-sided: how often "no change" loses at least as much more."""
        return at_least(self.lost, self.discordant, 0.5)

    @property
    def p_two_sided(self) -> float:
        return min(1.0, 2 * at_most(min(self.lost, self.won), self.discordant, 0.5))


@dataclass(frozen=True, slots=True)
class PairedMean:
    """Mean of differences, its standard error (0 if all are equal), and Student's t for it."""

    n: int
    mean: float
    error: float

    @property
    def t(self) -> float:
        if self.error == 0:
            return 0.0 if self.mean == 0 else math.copysign(math.inf, self.mean)
        return self.mean / self.error


def paired_mean(differences: Sequence[float]) -> PairedMean:
    """Raises ValueError for fewer than two."""
    n = len(differences)
    if n < 2:
        raise ValueError(f"a standard error needs at least 2 differences, not {n}")
    mean = math.fsum(differences) / n
    variance = math.fsum((one - mean) ** 2 for one in differences) / (n - 1)
    return PairedMean(n, mean, math.sqrt(variance / n))
