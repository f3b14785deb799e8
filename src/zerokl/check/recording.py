"""`zerokl record` and `zerokl replay`: last month's answers against today's server."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from zerokl.check.checking import Options, make_lab, open_wire, with_scheme
from zerokl.check.cli import FILE, TEXT, exit_status, finish, run_or_exit
from zerokl.check.golden import load, record, replay
from zerokl.check.outcome import CouldNotRun, Status
from zerokl.check.run import Report
from zerokl.check.targets.detect import MAKERS, find_target
from zerokl.check.terminal import show
from zerokl.check.verdicts import diagnose_report
from zerokl.check.wire import Budget

KIND = click.option("--target", type=click.Choice(["auto", *MAKERS]), default="auto", help="What kind of server it is.")
KEY = click.option("--api-key", default="", envvar="ZEROKL_API_KEY", help="Sent as a bearer token.")


@click.command("record")
@click.argument("url")
@click.option("-o", "--output", type=FILE, required=True, help="File of answers to write (JSON lines).")
@click.option("--seed", default=0, show_default=True, help="The prompts follow from it.")
@click.option("--max-new-tokens", type=click.IntRange(8), help="Upper limit of generated tokens per request.")
@KIND
@KEY
def record_command(url: str, output: Path, **chosen: Any) -> None:
    """Ask a server some dozens of things, and keep its answers with all bits."""
    console = Console()
    options = Options(url=with_scheme(url), **chosen)
    try:
        count = asyncio.run(record_answers(options, output))
    except CouldNotRun as error:
        console.print(f"could not run: {error}", style="yellow", highlight=False, markup=False)
        sys.exit(2)
    console.print(f"{count} requests recorded in {output}", highlight=False)


@click.command("replay")
@click.argument("answers", type=TEXT)
@click.argument("url")
@click.option("--json", "json_path", type=FILE, help="Write everything to this file (- for standard output).")
@click.option("--html", "html_path", type=FILE, help="Write a page for people.")
@click.option("--markdown", "markdown_path", type=FILE, help="Write a summary for a pull request.")
@click.option("--junit", "junit_path", type=FILE, help="Write test results for CI.")
@KIND
@KEY
def replay_command(answers: Path, url: str, target: str, api_key: str, **paths: Any) -> None:
    """Ask a server what was recorded, and compare the bits. Exit status as of `zerokl check`."""
    console = Console(stderr=any(str(path) == "-" for path in paths.values()))
    options = Options(url=with_scheme(url), target=target, api_key=api_key)
    report = run_or_exit(replay_answers(options, answers), console)
    show(console, report)
    sys.exit(exit_status(finish(report, console, paths, None), "any"))


async def record_answers(options: Options, output: Path) -> int:
    wire = open_wire(options, options.url, Budget())
    try:
        lab = await make_lab(await find_target(wire, options.target), options)
        return await record(lab, output)
    finally:
        await wire.close()


async def replay_answers(options: Options, answers: Path) -> Report:
    budget = Budget()
    wire = open_wire(options, options.url, budget)
    golden = load(answers)
    try:
        lab = await make_lab(await find_target(wire, options.target), options)
        report = Report(options.url, lab.facts, int(golden.header["seed"]), "recorded")
        started = time.monotonic()
        report.results.append(await replay(lab, golden))
        if report.status is Status.DIFFERENT:
            report.diagnoses = await diagnose_report(lab, report)
        report.seconds, report.requests, report.retries = time.monotonic() - started, budget.sent, wire.retries
        return report
    finally:
        await wire.close()
