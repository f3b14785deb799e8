"""Runs the cases one after the other and draws the verdict. Whatever a server does, every case gets a status."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from zerokl.check.cases import Case
from zerokl.check.clues import Diagnosis
from zerokl.check.lab import Lab
from zerokl.check.ledger import Comparison
from zerokl.check.outcome import EXIT_CODES, BudgetSpent, CouldNotRun, NotPossible, ServerGone, Status
from zerokl.check.rates import Rates
from zerokl.check.tally import Tally
from zerokl.check.targets.base import Can, Facts


@dataclass(slots=True)
class CaseResult:
    """A case's verdict and what it rests on."""

    case: Case
    status: Status
    reason: str
    tally: Tally
    seconds: float = 0.0


@dataclass(slots=True, repr=False)
class Report:
    """Everything a run found. No repr: asyncio.run makes one of what it returns, and it would hold every value."""

    url: str
    facts: Facts
    seed: int
    sizes: str
    results: list[CaseResult] = field(default_factory=list)
    rates: Rates | None = None
    estimate_s: float | None = None
    seconds: float = 0.0
    requests: int = 0
    retries: int = 0
    foreign_requests: int = 0
    """Of somebody else, while the run went on: they can make counts of cached tokens and widths come out otherwise."""
    diagnoses: list[Diagnosis] = field(default_factory=list)
    token_texts: dict[int, str] = field(default_factory=dict)
    """Of the ids in differences, where the server can tell."""
    left_out: list[str] = field(default_factory=list)
    """Cases that --quick does without."""

    @property
    def values(self) -> int:
        return sum(result.tally.values for result in self.results if not result.case.looks_back)

    @property
    def positions(self) -> int:
        return sum(result.tally.positions for result in self.results)

    @property
    def differing(self) -> int:
        return sum(result.tally.differing for result in self.results if not result.case.looks_back)

    @property
    def status(self) -> Status:
        found = {result.status for result in self.results}
        for status in (Status.DIFFERENT, Status.COULD_NOT_RUN, Status.EQUAL):
            if status in found:
                return status
        return Status.NOT_POSSIBLE

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.status]

    def divergent(self) -> list[Comparison]:
        """The answers that differ from earlier ones, in the order of the cases."""
        return [
            comparison for result in self.results for comparison in result.tally.comparisons if comparison.differences
        ]


async def run_cases(
    lab: Lab,
    cases: Sequence[Case],
    report: Report,
    *,
    on_start: Callable[[Case], None] = lambda _: None,
    on_end: Callable[[CaseResult], None] = lambda _: None,
) -> None:
    """Fills report.results with one result per case, whatever happens."""
    gone = ""
    for case in cases:
        on_start(case)
        result = _stopped(case, gone) if gone else await run_case(lab, case)
        if not gone and result.reason and result.status is Status.COULD_NOT_RUN:
            gone = _gone(result)
        report.results.append(result)
        on_end(result)


async def run_case(lab: Lab, case: Case) -> CaseResult:
    lab.tally = tally = Tally(case.name)
    missing = [ability.value for ability in Can if ability in case.needs - lab.target.abilities]
    if missing:
        return CaseResult(case, Status.NOT_POSSIBLE, f"needs a server that {' and '.join(missing)}", tally)
    started = time.monotonic()
    try:
        await case.run(lab)
    except NotPossible as error:
        return CaseResult(case, Status.NOT_POSSIBLE, str(error), tally)
    except CouldNotRun as error:
        tally.fail(str(error))
        tally.fatal = isinstance(error, ServerGone | BudgetSpent)
    if lab.log is not None:
        tally.log = lab.log.news()
    status, reason = verdict(tally)
    return CaseResult(case, status, reason, tally, time.monotonic() - started)


def verdict(tally: Tally) -> tuple[Status, str]:
    """Different beats all; then any failure; and a case that compared or saw nothing is no pass."""
    more = f" (and {len(tally.failures) - 1} more)" if len(tally.failures) > 1 else ""
    failure = f"{tally.failures[0]}{more}" if tally.failures else ""
    if tally.differing:
        return Status.DIFFERENT, failure
    if failure:
        return Status.COULD_NOT_RUN, failure
    if not tally.values:
        return Status.COULD_NOT_RUN, "no two values were there to compare"
    if not tally.events:
        return Status.COULD_NOT_RUN, "nothing shows that the case's event happened"
    return Status.EQUAL, ""


def wanted(cases: Sequence[Case], names: Sequence[str]) -> list[Case]:
    """The cases of these names, in the usual order; all if there are no names."""
    return [case for case in cases if not names or case.name in names]


def _gone(result: CaseResult) -> str:
    return result.tally.failures[-1] if result.tally.fatal else ""


def _stopped(case: Case, reason: str) -> CaseResult:
    return CaseResult(case, Status.COULD_NOT_RUN, reason, Tally(case.name))
