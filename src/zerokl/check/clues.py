"""The clues that a rule looks at, the kinds of defects that it may name, and the questions that most rules ask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from zerokl.check.bits import from_bits
from zerokl.check.contrast import Count, Factor, Sighting, Table, logprob_differences
from zerokl.check.targets.base import Facts

ENOUGH_EXPECTED = 6.0
"""Differing rows, had a circumstance nothing to do with it; fewer, and their absence may be luck."""
EXPLAINS = 0.95
"""Share of the differing rows that a rule must cover."""


class Kind(StrEnum):
    BATCH = "batch-size dependence"
    PADDING = "padding or graph bucket"
    PLACE = "place in the batch"
    MIXED = "prefill in the same step"
    ABORT = "aborted neighbours"
    PREEMPTION = "preempted requests"
    CACHE = "cache reuse corruption"
    SHAPE = "step-size dependence"
    PHASE = "prefill/decode kernel mismatch"
    LOG_SOFTMAX = "log-softmax mismatch"
    CHUNK = "chunk boundary"
    TILE = "KV tile boundary"
    SEED = "seed handling"
    SCALED = "logprobs after temperature"
    TOP = "number of top logprobs"
    STOP = "stop handling"
    WISHES = "wishes of neighbours"
    """Scores, samples, parameters of others in the batch."""
    STREAM = "streaming"
    ROUTE = "route"
    DIGITS = "digits lost in print"
    BUCKET = "prompt length bucket"
    RESTART = "other bits after a restart"
    UPDATE = "other bits after an update of weights"
    FIRST = "first request after a flush"
    UNREPEATABLE = "not repeatable"
    SERVER = "the servers differ"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Diagnosis:
    kind: Kind
    confidence: str
    """high, medium or low."""
    summary: str
    evidence: list[tuple[str, str]] = field(default_factory=list)
    """What was compared, and what came out."""


@dataclass(frozen=True, slots=True)
class Clues:
    """All meetings of the run, the differing ones among them, and the contrasts."""

    found: Sequence[Sighting]
    differing: Sequence[Sighting]
    table: Table
    facts: Facts

    def share(self, accept: Callable[[Sighting], bool]) -> float:
        return sum(map(accept, self.differing)) / len(self.differing)


def confidence(clues: Clues, explained: float) -> str:
    if len(clues.differing) >= 6 and explained >= EXPLAINS:
        return "high"
    return "medium" if len(clues.differing) >= 2 else "low"


def one_case(clues: Clues, cases: Sequence[str], kind: Kind, summary: str) -> Diagnosis | None:
    """Nearly all that differs does so in these cases, whose event no other case has."""
    share = clues.share(lambda one: _is_of(one, cases))
    if share < EXPLAINS:
        return None
    here, elsewhere = Count(), Count()
    for one in clues.found:
        (here if _is_of(one, cases) else elsewhere).add(one.differs)
    if elsewhere.rows * here.rate < ENOUGH_EXPECTED:
        return None
    return Diagnosis(kind, confidence(clues, share), summary, [("in all other cases", str(elsewhere))])


def _is_of(one: Sighting, cases: Sequence[str]) -> bool:
    """One of its sides; a wrong value may also be the one that was seen first."""
    return any(setting.case in cases for setting in one.sides)


def one_factor(clues: Clues, factor: Factor, kind: Kind, summary: str) -> Diagnosis | None:
    share = clues.share(lambda one: factor in one.factors)
    if share < EXPLAINS or not accused(clues, factor):
        return None
    return Diagnosis(kind, confidence(clues, share), summary, [(factor.value, str(clues.table.pure(factor)))])


def accused(clues: Clues, factor: Factor) -> bool:
    return clues.table.pure(factor).differing > 0


def largest(differing: Sequence[Sighting]) -> float:
    return max(distances(differing), default=0.0)


def distances(differing: Sequence[Sighting]) -> list[float]:
    return [abs(from_bits(item.first[0]) - from_bits(item.other[0])) for item in logprob_differences(differing)]
