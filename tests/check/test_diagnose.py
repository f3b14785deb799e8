"""Each planted defect is called by its name; a clean server is never called anything."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.check.trials import EXPECTED, draws, judged, run_draw, trial
from zerokl.check.clues import Kind
from zerokl.check.diagnose import diagnose
from zerokl.check.targets.base import Facts
from zerokl.suites import register_cpu_ci

register_cpu_ci(est_time=55, stage="base-b", runner_config="cpu-small")
register_cpu_ci(est_time=550, stage="nightly", runner_config="cpu-small", nightly=True)

pytestmark = pytest.mark.slow

QUICK = ("log_softmax",)
"""One for every run; all of them are in `slow`."""
TRIALS, DRAWN = 200, 230
"""So many are to count; so many are drawn, since a weak defect may not be expected to show."""


@pytest.mark.parametrize("defect", QUICK)
def test_defect_is_called_by_its_name(defect: str) -> None:
    outcome = trial(defect)
    assert outcome.detected or EXPECTED[defect] is Kind.DIGITS
    assert outcome.kinds[0] is EXPECTED[defect]


@pytest.mark.slow
@pytest.mark.parametrize("defect", sorted(set(EXPECTED) - set(QUICK)))
def test_every_defect_is_called_by_its_name(defect: str) -> None:
    assert trial(defect).kinds[0] is EXPECTED[defect]


def test_nothing_that_differs_is_no_diagnosis() -> None:
    assert diagnose([], Facts("fake")) is None


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_defects_with_enough_events_are_seen_and_named_in_95_percent_of_200_trials() -> None:
    outcomes = judged([run_draw(draw) for draw in draws(DRAWN)])
    assert len(outcomes) >= TRIALS
    missed = Counter((one.defect, one.strength, one.kinds[:1]) for one in outcomes if not (one.detected and one.named))
    assert missed.total() <= len(outcomes) * 0.05, missed


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_clean_server_raises_no_alarm_in_200_trials() -> None:
    assert [seed for seed in range(TRIALS) if trial("", seed=seed).detected] == []
