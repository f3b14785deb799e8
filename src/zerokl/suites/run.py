"""Run files, one process each: limits, fail-fast between files and stages, and an answer for every file, run or not."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

from zerokl.suites.machine import Machine
from zerokl.suites.plugin import STEP_NOTES
from zerokl.suites.processes import Ended, Jobs
from zerokl.suites.registration import Registration
from zerokl.suites.reports import Reports
from zerokl.suites.results import FileResult, Status, judge, read_events
from zerokl.suites.table import Stage, Table

COMMAND = "command"
"""The backend of a stage's own commands, in reports."""


@dataclass(frozen=True, slots=True)
class Options:
    jobs: int = 1
    keep_going: bool = False
    """Go on after a red file and a red stage: the bypass of fail-fast."""
    repeat: int = 1
    fresh: bool = False
    """A process for each repeat instead of one for all."""
    nightly: bool = False
    limit_s: float | None = None
    """Instead of the table's limit per file."""
    only: str = ""
    """Class::method in the file, or everything."""


@dataclass(slots=True)
class Watcher:
    """What to do when a file starts and ends; the terminal draws here."""

    starts: Callable[[Registration], None] = field(default=lambda _: None)
    ends: Callable[[FileResult], None] = field(default=lambda _: None)


def run_stages(
    table: Table,
    chosen: Sequence[Registration],
    machine: Machine,
    reports: Reports,
    options: Options,
    watcher: Watcher,
    *,
    commands: bool = True,
) -> list[FileResult]:
    """Stage by stage. Every registration in `chosen` gets a result; reports are valid after each of them."""
    results: list[FileResult] = []
    red = ""
    for stage in table.stages.values():
        files = [one for one in chosen if one.stage == stage.name]
        if not files:
            continue
        before = [_command(stage, line) for line in stage.commands] if commands else []
        if red and not options.keep_going:
            done = [_not_run(one, f"{red} is red") for one in (*before, *files)]
            for result in done:
                reports.add(result)
                watcher.ends(result)
        else:
            with Jobs() as jobs:
                done = _run_stage(table, stage, before, files, machine, reports, options, watcher, jobs)
        results += done
        if any(result.status.red for result in done):
            red = red or stage.name
    return results


def _run_stage(
    table: Table,
    stage: Stage,
    before: Sequence[Registration],
    files: Sequence[Registration],
    machine: Machine,
    reports: Reports,
    options: Options,
    watcher: Watcher,
    jobs: Jobs,
) -> list[FileResult]:
    """Its commands one by one, then its files in `jobs` threads, each of which waits for a process."""
    results: list[FileResult] = []

    def finish(result: FileResult) -> None:
        results.append(result)
        reports.add(result)
        watcher.ends(result)

    def stopped() -> str:
        red = next((result.name for result in results if result.status.red), "")
        return f"{red} is red" if red and not options.keep_going else ""

    for one in before:
        watcher.starts(one)
        finish(_not_run(one, stopped()) if stopped() else _run_command(table, stage, one, reports, jobs))
    # Longest first, so that no core waits at the end for one long file; alone the order is that of the names.
    queue = sorted(files, key=lambda one: -one.est_time) if options.jobs > 1 else list(files)
    with ThreadPoolExecutor(options.jobs) as pool, jobs:  # an interrupt ends the jobs first, then waits for the threads
        running: set[Future[FileResult]] = set()
        while queue or running:
            while queue and len(running) < options.jobs:
                one = queue.pop(0)
                if reason := stopped():
                    finish(_not_run(one, reason))
                elif lack := machine.lacks(table.runners[one.runner_config]):
                    finish(FileResult(one, Status.SKIPPED, reason=f"{one.runner_config} {lack}"))
                else:
                    watcher.starts(one)
                    running.add(pool.submit(run_file, table, one, reports, options, jobs))
            if running:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    finish(future.result())
    if excess := too_many_skips(stage, results):
        finish(FileResult(_command(stage, "skips allowed"), Status.FAILED, reason=excess))
    return results


def run_file(table: Table, one: Registration, reports: Reports, options: Options, jobs: Jobs) -> FileResult:
    """One process of pytest, or one per repeat with `fresh`; all its runs of tests in one result."""
    if not options.fresh or options.repeat == 1:
        return _run_once(table, one, reports, options, jobs, options.repeat, "")
    total = FileResult(one, Status.NOT_RUN)
    for attempt in range(1, options.repeat + 1):
        result = _run_once(table, one, reports, options, jobs, 1, f".{attempt}")
        for test in result.tests:
            test.attempt = attempt
        total = _joined(total, result)
    return total


def _run_once(
    table: Table, one: Registration, reports: Reports, options: Options, jobs: Jobs, repeat: int, suffix: str
) -> FileResult:
    log = reports.log(one, suffix)
    events = log.with_suffix(".jsonl")
    for path in (log, events, log.with_suffix(".steps")):
        path.unlink(missing_ok=True)
    marks = table.marks.get("nightly" if one.nightly else one.backend, "")
    command = [
        *(sys.executable, "-m", "pytest", f"{one.file}::{options.only}" if options.only else one.file),
        *("-p", "zerokl.suites.plugin", "-p", "no:cacheprovider", "-p", "no:xdist", "--color=no"),
        *(f"--suite-events={events}", f"--suite-repeat={repeat}"),
        *(("-m", marks) if marks and not options.only else ()),
    ]
    limit_s = options.limit_s or table.limits.seconds(one.est_time) * repeat
    notes = {STEP_NOTES: str(log.with_suffix(".steps"))} if options.repeat > 1 else {}
    ended = jobs.run(command, cwd=table.root, log=log, limit_s=limit_s, environment=notes)
    result = _result(one, ended, log, limit_s)
    return judge(result, read_events(events), timed_out=ended.timed_out)


def _run_command(table: Table, stage: Stage, one: Registration, reports: Reports, jobs: Jobs) -> FileResult:
    log = reports.log(one)
    log.unlink(missing_ok=True)
    ended = jobs.run(["bash", "-c", one.file], cwd=table.root, log=log, limit_s=stage.command_limit_s)
    result = _result(one, ended, log, stage.command_limit_s)
    if ended.timed_out:
        result.status, result.reason = Status.TIMED_OUT, f"ended after {stage.command_limit_s:g} s"
    elif ended.exit_code != 0:
        result.status, result.reason = Status.FAILED, f"exit status {ended.exit_code}"
    return result


def _result(one: Registration, ended: Ended, log: Path, limit_s: float) -> FileResult:
    return FileResult(
        one,
        Status.PASSED,
        seconds=round(ended.seconds, 2),
        limit_s=limit_s,
        exit_code=ended.exit_code,
        log=str(log),
        left_processes=ended.left_processes,
    )


def _joined(total: FileResult, result: FileResult) -> FileResult:
    """Of several processes: all tests; red if one was; flaky if they disagree."""
    result.tests = [*total.tests, *result.tests]
    result.seconds = round(total.seconds + result.seconds, 2)
    result.left_processes += total.left_processes
    statuses = {total.status, result.status} - {Status.NOT_RUN}
    if any(status.red for status in statuses):
        both = len(statuses) > 1
        if not result.status.red:
            result.log, result.reason, result.exit_code = total.log, total.reason, total.exit_code
        result.status = Status.FLAKY if both else result.status
    return result


def too_many_skips(stage: Stage, results: Iterable[FileResult]) -> str:
    skipped = sum(result.counts()["skipped"] for result in results)
    if stage.skips_allowed is not None and skipped > stage.skips_allowed:
        return f"{skipped} tests were skipped, {stage.name} allows {stage.skips_allowed}"
    return ""


def _command(stage: Stage, line: str) -> Registration:
    return Registration(line, COMMAND, 1.0, stage.name, "")


def _not_run(one: Registration, reason: str) -> FileResult:
    return FileResult(one, Status.NOT_RUN, reason=reason)
