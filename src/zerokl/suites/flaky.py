"""Which condition goes with the failures? For a test that gave both results, the conditions side by side.

For each condition the test noted, the runs are counted by value and result. The suspect is the condition that tells
most about the result (mutual information), if a random one with as many values would rarely tell as much.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from zerokl.suites.results import TestRun, both_ways

SHUFFLES = 1000
LEVEL = 0.05


@dataclass(frozen=True, slots=True)
class Condition:
    """Runs by value: (value, passed, failed). `chance`: how often shuffled results are told as well by it."""

    name: str
    rows: tuple[tuple[str, int, int], ...]
    bits: float
    chance: float


@dataclass(frozen=True, slots=True)
class Flaky:
    test: str
    passed: tuple[TestRun, ...]
    failed: tuple[TestRun, ...]
    conditions: tuple[Condition, ...]
    """Most telling first."""

    @property
    def cause(self) -> str:
        """The suspect's name; "" if no condition tells more than chance would."""
        if self.conditions and self.conditions[0].chance * len(self.conditions) <= LEVEL:
            return self.conditions[0].name
        return ""


def find_flaky(tests: Sequence[TestRun]) -> list[Flaky]:
    return [_flaky(name, [test for test in tests if test.test == name]) for name in both_ways(list(tests))]


def _flaky(name: str, runs: Sequence[TestRun]) -> Flaky:
    passed = tuple(run for run in runs if run.outcome == "passed")
    failed = tuple(run for run in runs if run.outcome in ("failed", "unfinished"))
    keys = dict.fromkeys(key for run in (*passed, *failed) for key in run.conditions)
    found = [_condition(key, passed, failed) for key in keys]
    return Flaky(name, passed, failed, tuple(sorted(found, key=lambda one: (one.chance, -one.bits))))


def _condition(key: str, passed: Sequence[TestRun], failed: Sequence[TestRun]) -> Condition:
    values = [run.conditions.get(key, "not noted") for run in (*passed, *failed)]
    results = [True] * len(passed) + [False] * len(failed)
    pairs = Counter(zip(values, results, strict=True))
    rows = tuple(
        (str(value), pairs[value, True], pairs[value, False])
        for value in sorted(dict.fromkeys(values), key=lambda value: (isinstance(value, str), value))
    )
    bits = _information(values, results)
    return Condition(key, rows, bits, _chance(values, results, bits))


def _information(values: Sequence[Hashable], results: Sequence[bool]) -> float:
    """Mutual information of value and result, in bits."""
    total = len(values)
    by_value, by_result = Counter(values), Counter(results)
    return sum(
        count / total * math.log2(count * total / (by_value[value] * by_result[result]))
        for (value, result), count in Counter(zip(values, results, strict=True)).items()
    )


def _chance(values: Sequence[Hashable], results: Sequence[bool], bits: float) -> float:
    """A condition that differs in every run tells everything about any result: shuffling shows that it is nothing."""
    draw = random.Random(0)  # the same report for the same runs
    shuffled = list(results)
    as_good = 0
    for _ in range(SHUFFLES):
        draw.shuffle(shuffled)
        as_good += _information(values, shuffled) >= bits - 1e-12
    return (as_good + 1) / (SHUFFLES + 1)
