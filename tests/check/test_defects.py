"""A clean server passes everything; each planted defect is seen by the case that is there for it."""

from __future__ import annotations

import pytest

from tests.check.conftest import RunCheck
from tests.check.defects import DEFECTS
from tests.check.fake_engine import FakeEngine
from zerokl.check.cases import CASES
from zerokl.check.clues import Kind
from zerokl.check.outcome import Status
from zerokl.check.run import CaseResult, Report

pytestmark = pytest.mark.slow

COUNTS_ONLY = {"cached_count", "seed_of_samples"}
"""Defects that leave the values alone: the case must refuse to pass, but nothing differs."""


def result_of(report: Report, name: str) -> CaseResult:
    return next(result for result in report.results if result.case.name == name)


def test_clean_server_has_no_differing_value_and_exits_0(run_fake: RunCheck) -> None:
    report = run_fake()
    reasons = {result.case.name: result.reason for result in report.results}
    for name in ("pressure", "storm", "evictions"):
        assert reasons.pop(name).startswith("needs a server with a cache of at most 8192 tokens")
    assert reasons.pop("second-tier").startswith("needs a server that keeps what its cache evicts in a second tier")
    assert reasons.pop("update") == "needs a server that loads other weights while it runs"
    assert set(reasons.values()) == {""}
    assert report.differing == 0
    assert report.exit_code == 0
    assert report.values >= 20_000


@pytest.mark.parametrize("seed", [1, 2])
def test_quick_run_of_a_clean_server_is_equal_for_other_seeds(run_fake: RunCheck, seed: int) -> None:
    report = run_fake(quick=True, seed=seed)
    assert {result.status for result in report.results} == {Status.EQUAL}


@pytest.mark.parametrize(("defect", "case"), [(name, case) for name, (_, case) in DEFECTS.items()])
def test_each_defect_is_seen_by_its_case(run_fake: RunCheck, defect: str, case: str) -> None:
    report = run_fake(defect, case)
    result = result_of(report, case)
    assert result.status is (Status.COULD_NOT_RUN if defect in COUNTS_ONLY else Status.DIFFERENT)
    assert report.exit_code == (2 if defect in COUNTS_ONLY else 1)


@pytest.mark.parametrize(
    ("case", "pool", "events"),
    [
        ("pressure", 500, {"preemptions"}),
        ("storm", 700, {"preemptions", "evictions"}),
        ("evictions", 500, {"evictions", "what was evicted was computed again", "and was cached anew"}),
    ],
)
def test_clean_server_with_a_small_cache_stays_equal(
    run_fake: RunCheck, case: str, pool: int, events: set[str]
) -> None:
    result = result_of(run_fake("", case, engine=FakeEngine(pool=pool)), case)
    assert (result.status, result.reason) == (Status.EQUAL, "")
    assert events <= set(result.tally.events)


def test_clean_server_with_two_tiers_brings_everything_back(run_fake: RunCheck) -> None:
    report = run_fake("", "evictions", "second-tier", engine=FakeEngine(pool=500, two_tiers=True))
    for result in report.results:
        assert (result.status, result.reason) == (Status.EQUAL, "")
        assert "loads from the second tier" in result.tally.events


def test_what_only_preempted_requests_do_is_called_so(run_fake: RunCheck) -> None:
    (diagnosis,) = run_fake("resumed", "repeats", "pressure", diagnose=True).diagnoses
    assert (diagnosis.kind, diagnosis.confidence) == (Kind.PREEMPTION, "high")


def test_every_case_has_a_defect_that_shows_it_can_fail() -> None:
    assert {case for _, case in DEFECTS.values()} == {case.name for case in CASES}


def test_wrong_count_of_cached_tokens_is_named_with_both_numbers(run_fake: RunCheck) -> None:
    reason = result_of(run_fake("cached_count", "warm-prefix"), "warm-prefix").reason
    assert "cached_tokens is 48, expected 32" in reason
