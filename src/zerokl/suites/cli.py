"""`zerokl suite`: list, plan, run, rerun, workflow."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import orjson
from rich.console import Console

from zerokl.errors import ConfigError
from zerokl.suites import terminal
from zerokl.suites.machine import this_machine
from zerokl.suites.partition import Shard, Times, partition, shards_needed
from zerokl.suites.registration import Registration, nearest
from zerokl.suites.registry import Registry, collect
from zerokl.suites.reports import Reports, write
from zerokl.suites.results import FileResult, Status
from zerokl.suites.run import Options, Watcher, run_stages
from zerokl.suites.table import find
from zerokl.suites.workflow import workflow

Command = Callable[..., Any]


@click.group()
@click.option("--project", type=click.Path(path_type=Path, file_okay=False), default=Path(), help="Folder to look in.")
@click.pass_context
def suite(context: click.Context, project: Path) -> None:
    """Tests by stage and runner: registered in the files, cut into shards, run one process per file."""
    context.obj = project


def registry() -> Registry:
    project: Path = click.get_current_context().obj
    return collect(find(project.resolve()))


def choice(command: Command) -> Command:
    """The options that choose registrations."""
    for option in (
        click.option("--stage", "stages", multiple=True, help="Only this stage (repeatable)."),
        click.option("--backend", type=click.Choice(["cpu", "cuda"]), help="Only this kind of machine."),
        click.option("--runner", help="Only this runner config."),
        click.option("--nightly", is_flag=True, help="The nightly registrations instead of the others."),
    ):
        command = option(command)
    return command


def running(command: Command) -> Command:
    """The options of `run` and `rerun`."""
    for option in (
        click.option("--keep-going", is_flag=True, help="Go on after a red file or stage."),
        click.option("--repeat", default=1, type=click.IntRange(1), help="Run each test so often, to hunt a flake."),
        click.option("--fresh", is_flag=True, help="With --repeat: each time in a process of its own."),
        click.option("--limit", "limit_s", type=float, metavar="SECONDS", help="Time limit per file."),
        click.option("--reports", default=Path("suite-reports"), type=click.Path(path_type=Path), help="Folder."),
    ):
        command = option(command)
    return command


def choose(known: Registry, stages: Sequence[str], runner: str | None, **chosen: Any) -> list[Registration]:
    for name in stages:
        if name not in known.table.stages:
            raise ConfigError(f"no stage {name!r}{nearest(name, known.table.stages)}")
    if runner is not None and runner not in known.table.runners:
        raise ConfigError(f"no runner {runner!r}{nearest(runner, known.table.runners)}")
    return known.chosen(stages=stages, runner=runner, **chosen)


@suite.command("list")
@choice
@click.option("--json", "as_json", is_flag=True)
def list_command(as_json: bool, **chosen: Any) -> None:
    """Every registered file, by stage; the disabled ones with their reasons."""
    known = registry()
    files = choose(known, **chosen)
    if as_json:
        click.echo(orjson.dumps([*files, *known.disabled()], option=orjson.OPT_INDENT_2))
        return
    for one in files:
        click.echo(f"{one.suite:28} {one.est_time:7g} s  {one.file}")
    for one in known.disabled():
        click.echo(f"{'disabled':28} {one.est_time:7g} s  {one.file}  {one.disabled}")
    click.echo(f"{len(files)} files, {sum(one.est_time for one in files):g} s; {len(known.disabled())} disabled")


@suite.command()
@choice
@click.option("--shards", type=click.IntRange(1), help="How many; without it, as many as the stage's limit asks for.")
@click.option("--shard", type=click.IntRange(1), help="Only this one, from 1.")
@click.option("--times", type=click.Path(path_type=Path, dir_okay=False), help="Measured times, from `run --times`.")
@click.option("--json", "as_json", is_flag=True)
def plan(shards: int | None, shard: int | None, times: Path | None, as_json: bool, **chosen: Any) -> None:
    """How a stage's files are cut into shards of about equal time."""
    known = registry()
    measured = Times.load(times)
    files = choose(known, **chosen)
    cut = cut_shards(known, files, shards, measured)
    shown = [(number, one) for number, one in enumerate(cut, 1) if shard in (None, number)]
    if as_json:
        content = [
            {"shard": number, "seconds": one.seconds, "files": [file.file for file in one.registrations]}
            for number, one in shown
        ]
        click.echo(orjson.dumps({"times": measured.digest, "shards": content}, option=orjson.OPT_INDENT_2))
        return
    for number, one in shown:
        click.echo(f"shard {number} of {len(cut)}: {len(one.registrations)} files, {one.seconds:g} s")
        for file in one.registrations:
            click.echo(f"  {file.est_time:7g} s  {file.file}")
    click.echo(f"{len(files)} files; times {measured.digest}")
    for warning in measured.warnings(files):
        click.echo(f"warning: {warning}", err=True)


def cut_shards(
    known: Registry, files: Sequence[Registration], shards: int | None, times: Times, jobs: int = 1
) -> list[Shard]:
    """Raises ConfigError if a shard, `jobs` files at a time, would take longer than its stages allow."""
    seconds = times.seconds(files)
    limit_s = min((known.table.stages[one.stage].shard_limit_s for one in files), default=float("inf"))
    cut = partition(files, shards or shards_needed(sum(seconds.values()), limit_s), seconds)
    if (longest := max(one.seconds for one in cut) / jobs) > limit_s:
        raise ConfigError(f"a shard would take {longest:g} s, {limit_s:g} are allowed: cut into more shards")
    return cut


@suite.command()
@choice
@running
@click.option("--shards", default=1, type=click.IntRange(1))
@click.option("--shard", default=1, type=click.IntRange(1), help="Which of the shards, from 1.")
@click.option("--jobs", default=1, type=click.IntRange(1), help="Files at a time.")
@click.option("--times", type=click.Path(path_type=Path, dir_okay=False), help="Cut by these; add this run's to them.")
def run(shards: int, shard: int, jobs: int, times: Path | None, reports: Path, **chosen: Any) -> None:
    """Run stages, or one shard of them. Exit status: 0 all green, 1 something is red."""
    known = registry()
    measured = Times.load(times)
    picked = {name: chosen.pop(name) for name in ("stages", "backend", "runner")}
    files = choose(known, nightly=chosen["nightly"], **picked)
    if shard > shards:
        raise ConfigError(f"there is no shard {shard} of {shards}")
    mine = set(cut_shards(known, files, shards, measured, jobs)[shard - 1].registrations)
    options = Options(jobs=jobs, **chosen)
    results = execute(known, [one for one in files if one in mine], reports, options, commands=shard == 1)
    if times:
        for result in results:
            if result.status is Status.PASSED and result.registration in mine and options.repeat == 1:
                measured.add(result.registration, result.seconds)
        write(times, measured.content())
    sys.exit(any(result.status.red for result in results))


@suite.command()
@running
@click.argument("tests", nargs=-1, required=True, metavar="FILE[::Class[.method]]...")
def rerun(tests: Sequence[str], reports: Path, **chosen: Any) -> None:
    """Run files, classes or single tests as their own registrations say, nothing else."""
    known = registry()
    red = False
    for number, test in enumerate(tests, 1):
        name, _, only = test.partition("::")
        files = registrations_of(known, name)
        options = Options(**chosen, only=only.replace(".", "::") if "[" not in only else only)
        results = execute(known, files, reports / str(number) if len(tests) > 1 else reports, options, commands=False)
        red = red or any(result.status.red for result in results)
    sys.exit(red)


def registrations_of(known: Registry, name: str) -> list[Registration]:
    """Of the file with this path or, if only one has it, this end of a path. Raises ConfigError with the nearest."""
    wanted = name.removeprefix("./")
    found = [one for one in known.registrations if one.file == wanted] or [
        one for one in known.registrations if f"/{one.file}".endswith(f"/{wanted}")
    ]
    names = sorted({one.file for one in found})
    if len(names) != 1:
        near = (
            f"; it could be {', '.join(names)}" if names else nearest(wanted, {one.file for one in known.registrations})
        )
        raise ConfigError(f"{name} is not the name of one registered file{near}")
    if all(one.disabled for one in found):
        raise ConfigError(f"{names[0]} is disabled: {found[0].disabled}")
    return [one for one in found if not one.disabled]


def execute(
    known: Registry, files: Sequence[Registration], reports: Path, options: Options, *, commands: bool
) -> list[FileResult]:
    """Runs and prints; the results of everything chosen and of what is disabled."""
    console = Console(soft_wrap=True)
    started = time.monotonic()
    watcher = Watcher(
        lambda one: terminal.show_started(console, one), lambda result: terminal.show_result(console, result)
    )
    folder = Reports(reports.resolve(), files)
    with terminable():
        results = run_stages(known.table, files, this_machine(), folder, options, watcher, commands=commands)
    for one in known.disabled() if commands else ():
        result = FileResult(one, Status.DISABLED, reason=one.disabled or "")
        folder.add(result)
        terminal.show_result(console, result)
        results.append(result)
    terminal.show_failures(console, results)
    terminal.show_end(console, results, time.monotonic() - started)
    return results


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM ends the run as Ctrl-C does: with all that it started, which has sessions of its own."""

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@suite.command("workflow")
def workflow_command() -> None:
    """Print a GitHub Actions workflow: stages, shards, runners, reruns by comment."""
    click.echo(workflow(registry()), nl=False)
