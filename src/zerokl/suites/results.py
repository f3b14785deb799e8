"""What happened to one file, read from the events that its tests wrote, however the process ended."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import orjson

from zerokl.suites.registration import Registration

UNUSABLE_EXIT = 75
"""A launcher's exit status for "this machine is unusable" (EX_TEMPFAIL). Words in a log never mean that."""

PYTEST_FAILED, PYTEST_EMPTY = 1, 5


class Status(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    FLAKY = "flaky: a bug"
    """Some test gave both results, in one run of a repeat."""
    TIMED_OUT = "timed out"
    CRASHED = "crashed"
    """Ended without saying so: a signal, os._exit, a broken start."""
    EMPTY = "no tests"
    """Registered, and nothing was collected: green would be a lie."""
    UNUSABLE = "machine unusable"
    SKIPPED = "skipped"
    """This machine hasn't what the runner config needs."""
    DESELECTED = "deselected"
    """All of its tests have marks that this suite leaves out."""
    DISABLED = "disabled"
    NOT_RUN = "not run"

    @property
    def red(self) -> bool:
        return self in RED


RED = {Status.FAILED, Status.FLAKY, Status.TIMED_OUT, Status.CRASHED, Status.EMPTY, Status.UNUSABLE}


@dataclass(slots=True)
class TestRun:
    """One run of one test: `attempt` counts the repeats of `--repeat`."""

    __test__ = False
    test: str
    attempt: int
    outcome: str = "unfinished"
    """passed, failed, skipped, xfailed; unfinished if the process ended in it."""
    seconds: float = 0.0
    text: str = ""
    conditions: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class FileResult:
    registration: Registration
    status: Status
    seconds: float = 0.0
    limit_s: float = 0.0
    exit_code: int | None = None
    reason: str = ""
    log: str = ""
    deselected: int = 0
    left_processes: int = 0
    """Processes that the tests left behind, ended afterwards."""
    tests: list[TestRun] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.registration.file

    def counts(self) -> Counter[str]:
        return Counter(test.outcome for test in self.tests)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "status": self.status.value, "counts": dict(self.counts())}


def read_events(path: Path) -> list[dict[str, Any]]:
    """A last line that was cut off is left out."""
    events = []
    for line in path.read_bytes().splitlines() if path.exists() else []:
        try:
            events.append(orjson.loads(line))
        except orjson.JSONDecodeError:
            break
    return events


def judge(result: FileResult, events: list[dict[str, Any]], *, timed_out: bool) -> FileResult:
    """Fills in tests, status and reason. Exit status 0 without an end event is no pass."""
    result.tests = _tests(events)
    result.deselected = sum(event.get("deselected", 0) for event in events if event["event"] == "collected")
    errors = [event for event in events if event["event"] == "error"]
    ended = any(event["event"] == "end" for event in events)
    running = ", ".join(test.test for test in result.tests if test.outcome == "unfinished")
    if timed_out:
        result.status = Status.TIMED_OUT
        result.reason = (
            f"ended after {result.limit_s:g} s, in {running or 'no test: before the first or after the last'}"
        )
    elif result.exit_code == UNUSABLE_EXIT:
        result.status, result.reason = Status.UNUSABLE, f"exit status {UNUSABLE_EXIT}"
    elif result.exit_code == PYTEST_EMPTY and ended and not errors:
        _judge_empty(result, events)
    elif result.exit_code == PYTEST_FAILED and ended:
        result.status = Status.FAILED
    elif result.exit_code == 0 and ended:
        result.status = Status.PASSED
    elif errors:
        result.status, result.reason = Status.FAILED, f"not collected: {errors[0]['where']}"
    else:
        result.status = Status.CRASHED
        result.reason = f"{_ending(result.exit_code)}{f', in {running}' if running else ''}"
    for error in errors:
        result.tests.append(TestRun(error["where"] or result.name, 1, "failed", 0.0, error["text"]))
    if result.status is Status.FAILED and both_ways(result.tests):
        result.status = Status.FLAKY
    return result


def both_ways(tests: list[TestRun]) -> list[str]:
    """Tests that passed in one run and didn't in another, in order."""
    outcomes: dict[str, set[str]] = {}
    for test in tests:
        outcomes.setdefault(test.test, set()).add("passed" if test.outcome == "passed" else test.outcome)
    return [name for name, seen in outcomes.items() if "passed" in seen and seen & {"failed", "unfinished"}]


def _judge_empty(result: FileResult, events: list[dict[str, Any]]) -> None:
    skipped = [event for event in events if event["event"] == "skipped_file"]
    if skipped:
        result.status = Status.PASSED
        result.tests = [TestRun(event["where"], 1, "skipped", 0.0, event["text"]) for event in skipped]
    elif result.deselected:
        result.status, result.reason = Status.DESELECTED, f"all {result.deselected} tests have other marks"
    else:
        result.status, result.reason = Status.EMPTY, "registered, but no test was collected"


def _tests(events: list[dict[str, Any]]) -> list[TestRun]:
    runs: dict[tuple[str, int], TestRun] = {}
    for event in events:
        if event["event"] == "start":
            runs[event["test"], event["attempt"]] = TestRun(event["test"], event["attempt"])
        elif event["event"] == "phase":
            _add_phase(runs[event["test"], event["attempt"]], event)
        elif event["event"] == "done":
            runs[event["test"], event["attempt"]].conditions = event["conditions"]
    return list(runs.values())


def _add_phase(run: TestRun, event: dict[str, Any]) -> None:
    """The worst phase counts: a passed call whose teardown fails is a failed test."""
    run.seconds += event["seconds"]
    run.text += event["text"]
    if event["outcome"] != "passed" or (event["when"] == "call" and run.outcome == "unfinished"):
        run.outcome = event["outcome"]


def _ending(exit_code: int | None) -> str:
    if exit_code is None:
        return "did not start"
    if exit_code < 0:
        return f"ended by signal {-exit_code}"
    return f"exit status {exit_code} without pytest's end"
