"""One answer against what was seen before it: where they part, how far apart they are, and k3 as a diagnostic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from zerokl.check.bits import from_bits, ulps
from zerokl.check.ledger import Comparison, Difference, Kind, Pair


@dataclass(frozen=True, slots=True)
class Divergence:
    """The summary of one answer's differences."""

    case: str
    first: str
    """The setting of the value seen first, in words."""
    other: str
    positions: tuple[int, ...]
    """Absolute positions at which something differs, in order."""
    prompt_tokens: int
    differing: int
    values: int
    kinds: dict[str, int]
    token_position: int | None
    """Where the drawn tokens part, if they do; nothing after it is compared."""
    max_ulps: int
    max_abs: float
    k3: float
    differences: tuple[Difference, ...]


def summarise(comparison: Comparison) -> Divergence:
    """Of a comparison that has differences."""
    differences = sorted(comparison.differences, key=lambda item: item.position)
    logprobs = [item for item in differences if item.kind == "logprob"]
    return Divergence(
        case=comparison.setting.case,
        first=differences[0].first_setting.describe(),
        other=comparison.setting.describe(),
        positions=tuple(sorted({item.position for item in differences})),
        prompt_tokens=len(comparison.answer.ask.ids),
        differing=len(differences),
        values=comparison.values,
        kinds={kind: sum(item.kind == kind for item in differences) for kind in get_args(Kind)},
        token_position=next((item.position for item in differences if item.kind == "token"), None),
        max_ulps=max((ulps(item.first[0], item.other[0]) for item in logprobs), default=0),
        max_abs=max((abs(from_bits(item.first[0]) - from_bits(item.other[0])) for item in logprobs), default=0.0),
        k3=k3(comparison.pairs),
        differences=tuple(differences),
    )


def k3(pairs: Sequence[Pair]) -> float:
    """Mean of exp(d) - 1 - d over the chosen tokens, d = other - first: 0.0 exactly if and only if all bits agree
    (up to float64 noise below 1e-16, which expm1 avoids for small d)."""
    if not pairs:
        return 0.0
    return math.fsum(_k3(from_bits(pair.other) - from_bits(pair.first)) for pair in pairs) / len(pairs)


def _k3(d: float) -> float:
    return math.expm1(min(d, 700.0)) - d if math.isfinite(d) else math.inf


def mean_k3(comparisons: Sequence[Comparison]) -> float:
    """As SGLang's tests average: over sequences, not over tokens."""
    means = [k3(comparison.pairs) for comparison in comparisons if comparison.pairs]
    return math.fsum(means) / len(means) if means else 0.0


def max_abs(comparisons: Sequence[Comparison]) -> float:
    """The largest |d| of any logprob."""
    return max(
        (
            abs(from_bits(item.first[0]) - from_bits(item.other[0]))
            for comparison in comparisons
            for item in comparison.differences
            if item.kind == "logprob"
        ),
        default=0.0,
    )
