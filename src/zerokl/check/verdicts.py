"""From a report with differences to its diagnosis: rules, re-runs where the rules need them, and confirmation."""

from __future__ import annotations

from collections.abc import Sequence

from zerokl.check.clues import Diagnosis, Kind
from zerokl.check.diagnose import candidates, diagnose, may_be_unrepeatable
from zerokl.check.experiments import NEED_WIDTHS, ON, Experiment, confirm, explore, repeat
from zerokl.check.lab import Lab
from zerokl.check.logs import Lines
from zerokl.check.run import Report

MOST_TRIED = 3
"""Other explanations that are tried once the first one doesn't show again."""


async def diagnose_report(lab: Lab, report: Report) -> list[Diagnosis]:
    """At most one diagnosis of the values, and one of how numbers are printed."""
    found = []
    comparisons = [comparison for result in report.results for comparison in result.tally.comparisons]
    diagnosis = diagnose(comparisons, report.facts)
    if diagnosis is not None:
        if diagnosis.kind in NEED_WIDTHS:
            diagnosis = diagnose([*comparisons, *await explore(lab)], report.facts) or diagnosis
        elif diagnosis.kind is not Kind.UNREPEATABLE and may_be_unrepeatable(comparisons):
            diagnosis = diagnose([*comparisons, *await repeat(lab)], report.facts) or diagnosis
        if not await confirm(lab, diagnosis, _where(report)):
            diagnosis = await _another(lab, diagnosis, candidates(comparisons, report.facts))
        if lab.edges:
            where = ", ".join(f"{edge - 1}/{edge}" for edge in lab.edges)
            diagnosis.evidence.append(("bits change between prompts of so many tokens", where))
        diagnosis.evidence += _log_evidence(report)
        found.append(diagnosis)
    if lab.not_float32:
        share = f"{len(lab.not_float32):,} of {lab.num_numbers:,} numbers"
        examples = ", ".join(repr(value) for value in lab.not_float32[:3])
        summary = "numbers are not whole float32: digits were lost before they were sent"
        found.append(Diagnosis(Kind.DIGITS, "high", summary, [("not a float32", share), ("such as", examples)]))
    return found


def _where(report: Report) -> Experiment | None:
    """The case that most rows differ in."""
    worst = max(report.results, key=lambda result: sum(bool(one.differences) for one in result.tally.comparisons))
    return worst.case.run if worst.tally.differing else None


async def _another(lab: Lab, doubtful: Diagnosis, others: Sequence[Diagnosis]) -> Diagnosis:
    """The first of the other rules that fit whose cause shows again; if none does, the doubtful one stays."""
    tried = [other for other in others if other.kind is not doubtful.kind][:MOST_TRIED]
    for other in tried:
        if await confirm(lab, other) and other.kind in ON:
            other.evidence.append(("didn't show again", doubtful.kind.value))
            return other
    return doubtful


def _log_evidence(report: Report) -> list[tuple[str, str]]:
    """The log's words on the cases that differ, and on those that don't."""
    said = {True: Lines(), False: Lines()}
    for result in report.results:
        differs = result.tally.differing > 0
        said[differs] += result.tally.log
    names = {True: "log, in cases that differ", False: "log, in cases that don't"}
    return [(names[differs], lines.describe()) for differs, lines in said.items() if lines.describe()]
