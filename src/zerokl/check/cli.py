"""`zerokl check URL`: does this server give the same bits for the same request, whatever else it does?"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click
import httpx
import orjson
from rich.console import Console

from zerokl.check.cases import CASES, Case
from zerokl.check.lab import Lab
from zerokl.check.outcome import CouldNotRun
from zerokl.check.prompts import Prompts, corpus_text
from zerokl.check.rates import fit, measure
from zerokl.check.report import as_json
from zerokl.check.run import Report, run_cases, wanted
from zerokl.check.sizes import DEFAULT, QUICK
from zerokl.check.targets.base import Target
from zerokl.check.targets.zerokl import ZeroklTarget
from zerokl.check.terminal import Watching, show
from zerokl.check.wire import Budget, Wire

QUICK_SECONDS = 55.0


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says."""

    url: str
    quick: bool = False
    cases: tuple[str, ...] = ()
    api_key: str = ""
    seed: int = 0
    max_new_tokens: int | None = None
    concurrency: int = 64
    budget_s: float | None = None
    max_requests: int | None = None
    timeout_s: float = 300.0
    text: str = ""


def _names(_: click.Context, __: click.Parameter, values: Sequence[str]) -> tuple[str, ...]:
    names = tuple(name.strip() for value in values for name in value.split(",") if name.strip())
    known = [case.name for case in CASES]
    for name in names:
        if name not in known:
            raise click.BadParameter(f"no case {name!r}; there are: {', '.join(known)}")
    return names


@click.command()
@click.argument("url")
@click.option("--quick", is_flag=True, help="A useful verdict within a minute.")
@click.option("--cases", multiple=True, callback=_names, help="Only these, by name, comma-separated (repeatable).")
@click.option(
    "--json", "json_path", type=click.Path(path_type=Path), help="Write everything to this file (- for stdout)."
)
@click.option("--api-key", default="", envvar="ZEROKL_API_KEY", help="Sent as a bearer token.")
@click.option("--seed", default=0, show_default=True, help="All prompts, seeds and orders follow from it.")
@click.option("--max-new-tokens", type=click.IntRange(8), help="Upper limit of generated tokens per request.")
@click.option("--concurrency", default=64, show_default=True, type=click.IntRange(2), help="Connections at a time.")
@click.option(
    "--budget", type=float, metavar="SECONDS", help="Fit the run into this time; what is left over could not run."
)
@click.option("--max-requests", type=int, help="Stop after this many HTTP requests.")
@click.option("--timeout", default=300.0, show_default=True, help="Seconds to wait for one answer.")
@click.option("--corpus", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Own text for prompts.")
@click.option(
    "--list",
    "list_cases",
    is_flag=True,
    is_eager=True,
    callback=lambda c, p, v: _list(c, v),
    expose_value=False,
    help="List the cases.",
)
def check(
    url: str,
    quick: bool,
    cases: tuple[str, ...],
    json_path: Path | None,
    api_key: str,
    seed: int,
    max_new_tokens: int | None,
    concurrency: int,
    budget: float | None,
    max_requests: int | None,
    timeout: float,
    corpus: Path | None,
) -> None:
    """Compare the bits of a server's answers over circumstances that must not matter.

    URL is the server's base, such as http://127.0.0.1:30000. Exit status: 0 equal, 1 different, 2 could not run.
    """
    options = Options(
        url=url if "//" in url else f"http://{url}",
        quick=quick,
        cases=cases,
        api_key=api_key,
        seed=seed,
        max_new_tokens=max_new_tokens,
        concurrency=concurrency,
        budget_s=budget,
        max_requests=max_requests,
        timeout_s=timeout,
        text=corpus.read_text("utf-8") if corpus else "",
    )
    console = Console(stderr=str(json_path) == "-")
    try:
        report = asyncio.run(run_check(options, console))
    except CouldNotRun as error:
        console.print(f"could not run: {error}", style="yellow", highlight=False, markup=False)
        sys.exit(2)
    show(console, report)
    if json_path is not None:
        _write(json_path, orjson.dumps(as_json(report), option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS))
    sys.exit(report.exit_code)


async def run_check(options: Options, console: Console, transport: httpx.AsyncBaseTransport | None = None) -> Report:
    """The whole run against one server. Raises CouldNotRun only if the server can't even be asked what it is."""
    budget = Budget(options.budget_s, options.max_requests)
    wire = Wire(
        options.url,
        api_key=options.api_key,
        budget=budget,
        concurrency=options.concurrency,
        timeout_s=options.timeout_s,
        transport=transport,
    )
    try:
        target = ZeroklTarget(wire)
        lab = await make_lab(target, options)
        report = Report(options.url, lab.facts, options.seed, lab.sizes.name)
        cases = wanted(CASES, options.cases)
        await _estimate(lab, cases, report, options, budget, console)
        started = time.monotonic()
        await _watched(lab, cases, report, console)
        report.seconds = time.monotonic() - started
        report.requests, report.retries = budget.sent, wire.retries
        return report
    finally:
        await wire.close()


async def make_lab(target: Target, options: Options) -> Lab:
    facts = await target.facts()
    corpus = await target.tokenize(options.text or corpus_text())
    if facts.largest_id is None:
        facts = replace(facts, largest_id=max(corpus, default=255) if corpus else 255)
    sizes = (QUICK if options.quick else DEFAULT).capped(options.max_new_tokens)
    return Lab(target, facts, Prompts(options.seed, corpus, facts.largest_id or 255), sizes, seed=options.seed)


async def _estimate(
    lab: Lab, cases: Sequence[Case], report: Report, options: Options, budget: Budget, console: Console
) -> None:
    report.rates = await measure(lab)
    limit = QUICK_SECONDS if options.quick and options.budget_s is None else options.budget_s
    if limit is not None:
        fit(lab, cases, report.rates, min(limit, budget.seconds_left))
    report.estimate_s = sum(report.rates.seconds(case.cost(lab)) for case in cases)
    rates = report.rates
    console.print(
        f"{len(cases)} cases, about {report.estimate_s:.0f} s (measured: prefill {rates.prefill:.0f} tokens/s, decode "
        f"{rates.alone:.0f} alone, {rates.crowd:.0f} in company)",
        highlight=False,
        style="dim",
    )


async def _watched(lab: Lab, cases: Sequence[Case], report: Report, console: Console) -> None:
    assert report.rates is not None
    seconds = {case.name: report.rates.seconds(case.cost(lab)) for case in cases}
    with Watching(console, seconds) as watching:
        lab.on_answer = watching.answer
        await run_cases(lab, cases, report, on_start=watching.start, on_end=watching.end)


def _list(context: click.Context, wanted_list: bool) -> None:
    if wanted_list and not context.resilient_parsing:
        for case in CASES:
            click.echo(f"{case.name:15} {case.title}")
        context.exit()


def _write(path: Path, content: bytes) -> None:
    if str(path) == "-":
        sys.stdout.buffer.write(content + b"\n")
    else:
        path.write_bytes(content + b"\n")
