"""What `zerokl suite` prints: a line per file, both sides of what is flaky, and a last line that counts tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table as Columns

from zerokl.suites.flaky import Flaky, find_flaky
from zerokl.suites.registration import Registration
from zerokl.suites.results import FileResult, Status, TestRun

SHOWN_LINES = 30
STYLES = {Status.PASSED: "green", Status.NOT_RUN: "yellow"}
WORDS = ("failed", "unfinished", "passed", "skipped", "xfailed")


def show_started(console: Console, one: Registration) -> None:
    if console.is_terminal:
        console.print(f"{one.file} ...", style="dim", highlight=False, markup=False)


def show_result(console: Console, result: FileResult) -> None:
    style = "bold red" if result.status.red else STYLES.get(result.status, "dim")
    counts = ", ".join(f"{count} {word}" for word, count in sorted(result.counts().items()))
    left = f"left {result.left_processes} processes behind" if result.left_processes else ""
    notes = "; ".join(part for part in (counts, result.reason, left) if part)
    console.print(
        f"{result.status.value:>12}  {result.seconds:6.1f} s  {result.name}  {notes}",
        style=style,
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def show_failures(console: Console, results: Sequence[FileResult]) -> None:
    """The texts of failed tests; for a file without any, the end of its log."""
    for result in results:
        if not result.status.red:
            continue
        console.rule(f"{result.status.value}: {result.name}", style="red")
        flaky = find_flaky(result.tests)
        for one in flaky:
            show_flaky(console, one, result)
        known = {one.test for one in flaky}
        failed = [test for test in result.tests if test.outcome == "failed" and test.test not in known]
        for test in failed:
            console.print(f"{test.test}\n{test.text}", highlight=False, markup=False, soft_wrap=True)
        if not failed and not flaky and result.log:
            console.print(f"{result.reason}\nthe end of {result.log}:", highlight=False, markup=False)
            console.print(_tail(Path(result.log)), highlight=False, markup=False, soft_wrap=True)


def show_flaky(console: Console, one: Flaky, result: FileResult) -> None:
    """A test that gave both results is a bug: what went with which result, then both runs."""
    runs = len(one.passed) + len(one.failed)
    console.print(f"flaky: a bug: {one.test} failed {len(one.failed)} of {runs} runs", style="bold red", markup=False)
    if one.conditions:
        columns = Columns("condition", "value", "passed", "failed", "chance", box=None, header_style="bold")
        for condition in one.conditions:
            name = f"{condition.name}  <- suspect" if condition.name == one.cause else condition.name
            for number, (value, passed, failed) in enumerate(condition.rows):
                chance = f"{condition.chance:.4f}" if number == 0 else ""
                columns.add_row(name if number == 0 else "", value, str(passed), str(failed), chance)
        console.print(columns)
    else:
        console.print("its runs noted no conditions (the fixture `conditions` takes them)", markup=False)
    for run in (one.passed[0], one.failed[0]):
        console.print(_run(run), highlight=False, markup=False, soft_wrap=True)
    console.print(f"log of all runs: {result.log}", highlight=False, markup=False)


def _run(run: TestRun) -> str:
    noted = ", ".join(f"{name} {value}" for name, value in run.conditions.items())
    return f"run {run.attempt}, {run.outcome} in {run.seconds:.2f} s{f' ({noted})' if noted else ''}\n{run.text}"


def show_end(console: Console, results: Sequence[FileResult], seconds: float) -> None:
    """The last line counts tests, in pytest's words; the one before it files, when some didn't run."""
    files = Counter(result.status.value for result in results)
    console.print(
        "files: " + ", ".join(f"{count} {status}" for status, count in sorted(files.items())),
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    counts: Counter[str] = sum((result.counts() for result in results), Counter())
    parts = [f"{counts[word]} {word}" for word in WORDS if counts[word]]
    if deselected := sum(result.deselected for result in results):
        parts.append(f"{deselected} deselected")
    red = any(result.status.red for result in results)
    line = f" {', '.join(parts) or 'no tests ran'} in {seconds:.2f}s "
    console.print(f"{line:=^80}", style="bold red" if red else "bold green", highlight=False, markup=False)


def _tail(path: Path) -> str:
    lines = path.read_text("utf-8", "replace").splitlines() if path.exists() else []
    return "\n".join(lines[-SHOWN_LINES:])
