"""The report for people: progress while it runs; then the verdict, the table, and both sides of what differs."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console, Group
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from zerokl.check.bits import from_bits, ulps
from zerokl.check.cases import Case
from zerokl.check.divergence import Divergence, mean_k3, summarise
from zerokl.check.ledger import Difference
from zerokl.check.outcome import Status
from zerokl.check.report import headline
from zerokl.check.run import CaseResult, Report

MARKS = {
    Status.EQUAL: ("equal", "green"),
    Status.DIFFERENT: ("DIFFERENT", "bold red"),
    Status.COULD_NOT_RUN: ("could not run", "yellow"),
    Status.NOT_POSSIBLE: ("not possible", "dim"),
}
SHOWN_ANSWERS, SHOWN_ROWS, SHOWN_EVIDENCE = 4, 5, 12


class Watching:
    """A progress bar in the estimate's seconds, and one line per finished case where there is no terminal."""

    def __init__(self, console: Console, seconds: dict[str, float]) -> None:
        self._console = console
        self._seconds = seconds
        self._done = 0.0
        self._answers = 0
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[answers]} answers"),
            console=console,
            transient=True,
        )
        self._task = self._progress.add_task("starting", total=max(1e-9, sum(seconds.values())), answers=0)

    def __enter__(self) -> Watching:
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def start(self, case: Case) -> None:
        self._progress.update(self._task, description=case.name)

    def answer(self) -> None:
        self._answers += 1
        self._progress.update(self._task, answers=self._answers)

    def end(self, result: CaseResult) -> None:
        self._done += self._seconds.get(result.case.name, 0.0)
        self._progress.update(self._task, completed=self._done)
        if not self._console.is_terminal:
            self._console.print(f"{result.case.name}: {result.status.value} ({result.seconds:.1f} s)", highlight=False)


def show(console: Console, report: Report) -> None:
    style = MARKS[report.status][1]
    console.print(Text(headline(report), style=style if report.status is not Status.EQUAL else "bold green"))
    console.print(_subtitle(report), highlight=False, style="dim")
    if report.left_out:
        console.print(f"left out by --quick: {', '.join(report.left_out)}", highlight=False, style="dim")
    if report.foreign_requests:
        console.print(f"{report.foreign_requests} requests of others ran meanwhile: counts may be off", style="yellow")
    console.print(_table(report))
    _reasons(console, report)
    _diagnoses(console, report)
    _details(console, report)


def _subtitle(report: Report) -> str:
    facts = report.facts
    name = " ".join(part for part in (facts.kind, facts.version) if part)
    return (
        f"{report.url}: {name}, {facts.model or 'model unknown'}; {report.positions:,} positions compared, "
        f"{report.requests:,} HTTP requests, {report.seconds:.0f} s, seed {report.seed}"
    )


def _table(report: Report) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("case")
    table.add_column("what is compared", overflow="fold")
    table.add_column("values", justify="right")
    table.add_column("differ", justify="right")
    table.add_column("k3", justify="right")
    table.add_column("s", justify="right")
    table.add_column("verdict")
    for result in report.results:
        mark, style = MARKS[result.status]
        tally = result.tally
        table.add_row(
            result.case.name,
            result.case.title,
            f"{tally.values:,}",
            f"{tally.differing:,}",
            _k3(result),
            f"{result.seconds:.1f}",
            Text(mark, style=style),
        )
    return table


def _k3(result: CaseResult) -> str:
    value = mean_k3(result.tally.comparisons)
    return "0" if value == 0 else f"{value:.1e}"


def _reasons(console: Console, report: Report) -> None:
    lines = [
        Text.assemble((f"{result.case.name}: ", "bold"), result.reason)
        for result in report.results
        if result.reason and result.status is not Status.EQUAL
    ]
    if lines:
        console.print()
        console.print(Group(*lines))


def _diagnoses(console: Console, report: Report) -> None:
    for diagnosis in report.diagnoses:
        console.print()
        console.print(
            Text.assemble(
                ("diagnosis: ", "bold"), (diagnosis.kind.value, "bold red"), f", {diagnosis.confidence} confidence"
            )
        )
        console.print(f"  {diagnosis.summary}", highlight=False)
        for what, found in diagnosis.evidence[:SHOWN_EVIDENCE]:
            console.print(f"  {what:45}  {found}", highlight=False, markup=False)


def _details(console: Console, report: Report) -> None:
    found = report.divergent()
    for comparison in found[:SHOWN_ANSWERS]:
        console.print()
        _divergence(console, summarise(comparison), report.token_texts)
    if len(found) > SHOWN_ANSWERS:
        console.print(f"\n... and {len(found) - SHOWN_ANSWERS} more answers that differ (all of them in --json)")


def _divergence(console: Console, item: Divergence, texts: Mapping[int, str]) -> None:
    console.print(Text.assemble((f"{item.case}: ", "bold red"), f"{item.differing} of {item.values} values differ"))
    console.print(f"  first  {item.first}", highlight=False, markup=False)
    console.print(f"  other  {item.other}", highlight=False, markup=False)
    parted = "" if item.token_position is None else f"; the tokens part at position {item.token_position}"
    console.print(
        f"  {item.prompt_tokens} prompt tokens; positions {_some(item.positions)}{parted}; "
        f"max {item.max_ulps} ulps, |d| {item.max_abs:.2e}, k3 {item.k3:.2e}",
        highlight=False,
    )
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2))
    for name in ("  position", "what", "first", "other", "ulps", "phases"):
        table.add_column(name, justify="right" if name in ("  position", "ulps") else "left")
    rows = dict.fromkeys(_row(difference, texts) for difference in item.differences)  # chosen, and in its top row too
    for row in list(rows)[:SHOWN_ROWS]:
        table.add_row(*map(Text, row))
    console.print(table)


def _row(item: Difference, texts: Mapping[int, str]) -> tuple[str, ...]:
    phases = item.first_phase if item.first_phase == item.other_phase else f"{item.first_phase} / {item.other_phase}"
    if item.kind != "logprob":
        return (str(item.position), item.kind, _ids(item.first), _ids(item.other), "", phases)
    first, other = item.first[0], item.other[0]
    return (
        str(item.position),
        f"logprob of {repr(texts[item.token]) if item.token in texts else item.token}",
        f"{from_bits(first):.9g} {first:08x}",
        f"{from_bits(other):.9g} {other:08x}",
        str(ulps(first, other)),
        phases,
    )


def _ids(ids: tuple[int, ...]) -> str:
    return " ".join(str(token) for token in ids)


def _some(positions: tuple[int, ...]) -> str:
    shown = ", ".join(str(position) for position in positions[:6])
    return shown if len(positions) <= 6 else f"{shown}, ... ({len(positions)})"
