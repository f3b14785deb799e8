"""One whole run against one server, or against two: find out what it is, estimate, run the cases, report."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx
from rich.console import Console

from zerokl.check.against import against
from zerokl.check.cases import CASES, Case
from zerokl.check.lab import Lab
from zerokl.check.logs import Log
from zerokl.check.outcome import CouldNotRun, Status
from zerokl.check.probing import with_page_size
from zerokl.check.prompts import Prompts, corpus_text
from zerokl.check.rates import fit, measure
from zerokl.check.report import outputs
from zerokl.check.run import Report, run_cases, wanted
from zerokl.check.sizes import DEFAULT, QUICK
from zerokl.check.targets.base import Target
from zerokl.check.targets.detect import find_target
from zerokl.check.targets.torch_model import SCHEME
from zerokl.check.terminal import Watching
from zerokl.check.verdicts import diagnose_report
from zerokl.check.wire import Budget, Wire

QUICK_SECONDS = 55.0
SHOWN_TEXTS = 12
"""Answers whose tokens are shown as text in the reports."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says."""

    url: str
    target: str = "auto"
    against: str = ""
    quick: bool = False
    cases: tuple[str, ...] = ()
    api_key: str = ""
    model: str = ""
    seed: int = 0
    max_new_tokens: int | None = None
    concurrency: int = 64
    budget_s: float | None = None
    max_requests: int | None = None
    timeout_s: float = 300.0
    text: str = ""
    diagnose: bool = True
    restart: Callable[[], Awaitable[None]] | None = None
    """--restart-command."""
    other_weights: str = ""
    log: Path | None = None
    """The server's log file, if it can be read here."""
    transports: dict[str, httpx.AsyncBaseTransport] = field(default_factory=dict)
    """By URL, instead of sockets: for servers in this process."""


async def run_check(options: Options, console: Console) -> Report:
    """Raises CouldNotRun only if the server can't even be asked what it is."""
    budget = Budget(options.budget_s, options.max_requests)
    wire = open_wire(options, options.url, budget)
    try:
        lab = await make_lab(await find_target(wire, options.target, options.model), options)
        report = Report(options.url, lab.facts, options.seed, lab.sizes.name)
        log = Log(options.log) if options.log else None
        cases, left_out = choose(options)
        report.left_out = left_out
        await _estimate(lab, cases, report, options, budget, console)
        if log is not None:
            log.news()  # of the measuring
            lab.log = log
        before = await lab.target.counters()
        started = time.monotonic()
        await _watched(lab, cases, report, console)
        if options.against:
            await _against(lab, report, options, budget, console)
        if options.diagnose and report.status is Status.DIFFERENT:
            console.print("narrowing the cause down with controlled re-runs ...", style="dim")
            report.diagnoses = await diagnose_report(lab, report)
        report.token_texts = await _texts(lab, report)
        report.seconds = time.monotonic() - started
        report.requests, report.retries = budget.sent, wire.retries
        if not any(result.tally.fatal for result in report.results):
            submitted = (await lab.target.counters()).since(before).submitted
            report.foreign_requests = max(0, (submitted or 0) - lab.num_answers - lab.num_unrecorded)
        return report
    finally:
        await wire.close()


def with_scheme(url: str) -> str:
    return url if "//" in url or url.startswith(SCHEME) else f"http://{url}"


def open_wire(options: Options, url: str, budget: Budget) -> Wire:
    return Wire(
        url,
        api_key=options.api_key,
        budget=budget,
        concurrency=options.concurrency,
        timeout_s=options.timeout_s,
        transport=options.transports.get(url),
    )


async def make_lab(target: Target, options: Options) -> Lab:
    facts = await target.facts()
    corpus = await target.tokenize(options.text or corpus_text())
    if facts.largest_id is None:
        facts = replace(facts, largest_id=max(corpus, default=255) if corpus else 255)
    sizes = (QUICK if options.quick else DEFAULT).capped(options.max_new_tokens)
    prompts = Prompts(options.seed, corpus, facts.largest_id or 255)
    facts = await with_page_size(target, facts, prompts)
    lab = Lab(target, facts, prompts, sizes, seed=options.seed)
    lab.restart, lab.other_weights = options.restart, options.other_weights
    return lab


def choose(options: Options) -> tuple[list[Case], list[str]]:
    """The cases to run, and the names of those that --quick leaves out."""
    cases = wanted(CASES, options.cases)
    if not options.quick or options.cases:
        return cases, []
    return [case for case in cases if case.quick], [case.name for case in cases if not case.quick]


async def _estimate(
    lab: Lab, cases: Sequence[Case], report: Report, options: Options, budget: Budget, console: Console
) -> None:
    report.rates = await measure(lab)
    limit = QUICK_SECONDS if options.quick and options.budget_s is None else options.budget_s
    possible = [case for case in cases if case.needs <= lab.target.abilities]
    if limit is not None:
        fit(lab, possible, report.rates, min(limit, budget.seconds_left))
    report.estimate_s = sum(report.rates.seconds(case.cost(lab)) for case in possible)
    rates = report.rates
    console.print(
        f"{lab.facts.kind}: {len(possible)} of {len(cases)} cases, about {report.estimate_s:.0f} s (measured: prefill "
        f"{rates.prefill:.0f} tokens/s, decode {rates.alone:.0f} alone, {rates.crowd:.0f} in company)",
        highlight=False,
        style="dim",
    )


async def _watched(lab: Lab, cases: Sequence[Case], report: Report, console: Console) -> None:
    assert report.rates is not None
    seconds = {case.name: report.rates.seconds(case.cost(lab)) for case in cases}
    with Watching(console, seconds) as watching:
        lab.on_answer = watching.answer
        await run_cases(lab, cases, report, on_start=watching.start, on_end=watching.end)


async def _texts(lab: Lab, report: Report) -> dict[int, str]:
    """Texts of the tokens around the places where answers part, and of those whose logprobs differ."""
    wanted: set[int] = set()
    texts = outputs(report)
    for comparison in report.divergent()[:SHOWN_TEXTS]:
        wanted.update(item.token for item in comparison.differences[:SHOWN_TEXTS] if item.kind == "logprob")
        parted = next((item for item in comparison.differences if item.kind == "token"), None)
        if parted is not None:
            first = texts.get((parted.first_setting.server, parted.first_setting.number), ())
            for ids in (comparison.answer.text_ids, first):
                wanted.update(ids[max(0, parted.position - 8) : parted.position + 14])
    try:
        return await lab.target.texts(sorted(wanted)) if wanted else {}
    except (CouldNotRun, KeyError, TypeError, ValueError):  # only for show: ids are shown instead
        return {}


async def _against(lab: Lab, report: Report, options: Options, budget: Budget, console: Console) -> None:
    """The references of this server, asked of another one and met in the same ledger."""
    wire = open_wire(options, options.against, budget)
    try:
        other = await make_lab(await find_target(wire, "auto", options.model), options)
        console.print(f"against {options.against}: {other.facts.kind}", highlight=False, style="dim")
        result = await against(lab, other, options.against)
    finally:
        await wire.close()
    report.results.append(result)
