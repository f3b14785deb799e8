"""One trial: a fake server with one defect of some strength, checked and diagnosed."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from statistics import mean
from unittest.mock import patch

from rich.console import Console

from tests.check.conftest import NEED_SGLANG, restarting
from tests.check.fake_engine import FakeEngine
from tests.check.fake_peers import FakeSGLang
from tests.check.fake_server import FakeServer, InProcess
from zerokl.check.checking import Options, run_check
from zerokl.check.clues import Diagnosis, Kind
from zerokl.check.lab import Lab
from zerokl.check.run import Report
from zerokl.check.verdicts import diagnose_report

EXPECTED = {
    "batch_size": Kind.BATCH,
    "padding_row": Kind.PADDING,
    "slot": Kind.PLACE,
    "mixed_step": Kind.MIXED,
    "overlap": Kind.MIXED,
    "late_prefill": Kind.MIXED,
    "aborted_page": Kind.ABORT,
    "bucket": Kind.BUCKET,
    "unseeded_draws": Kind.SEED,
    "old_weights": Kind.UPDATE,
    "restarted": Kind.RESTART,
    "abort_frees_others": Kind.ABORT,
    "stale_page": Kind.CACHE,
    "match_one_more": Kind.CACHE,
    "decoded_page": Kind.PHASE,
    "log_softmax": Kind.LOG_SOFTMAX,
    "prefill_sum": Kind.PHASE,
    "chunk_cut": Kind.CHUNK,
    "page_edge": Kind.TILE,
    "seed_by_slot": Kind.SEED,
    "stream_by_count": Kind.SEED,
    "six_digits": Kind.DIGITS,
    "echo_rounds": Kind.ROUTE,
    "stream_drops": Kind.STREAM,
    "every_fifth": Kind.UNREPEATABLE,
    "after_temperature": Kind.SCALED,
    "greedy_draws": Kind.WISHES,
    "two_scores": Kind.WISHES,
    "unfinished_page": Kind.CACHE,
    "page_hash": Kind.CACHE,
    "long_neighbour": Kind.PADDING,
    "after_flush": Kind.FIRST,
    "top_one": Kind.TOP,
    "late_stop": Kind.STOP,
    "stale_slot": Kind.ABORT,
    "every_64": Kind.CACHE,
}
"""What each planted defect is to be called."""

GRADED = (
    "batch_size",
    "padding_row",
    "slot",
    "mixed_step",
    "bucket",
    "log_softmax",
    "prefill_sum",
    "chunk_cut",
    "every_fifth",
)
"""Defects that can be weak: they then spoil one in n of the rows that have their cause."""


STRENGTHS = (1, 2, 4, 8, 16, 32, 64)
ENOUGH_EXPECTED = 6.0
"""Events that a run must be expected to have: below, not to see a defect is luck as well."""


@dataclass(frozen=True)
class Draw:
    """One trial to come. No defect: a clean server."""

    defect: str
    strength: int
    seed: int


@dataclass(frozen=True)
class Outcome:
    defect: str
    strength: int
    seed: int
    events: int
    """Different things spoiled while the cases ran: rows of a text, draws, ends."""
    detected: bool
    kinds: tuple[Kind, ...]

    @property
    def named(self) -> bool:
        return self.kinds[:1] == (EXPECTED[self.defect],)


def draws(count: int) -> list[Draw]:
    """Random defects of random strengths."""
    random = Random(0)
    drawn = []
    for _ in range(count):
        defect = random.choice(sorted(EXPECTED))
        strength = random.choice(STRENGTHS) if defect in GRADED else 1
        drawn.append(Draw(defect, strength, random.randrange(10**6)))
    return drawn


def judged(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Those with enough expected events: as many as this defect has in all its trials, each at full strength, over the
    strength. What really happened in a trial doesn't decide whether it counts."""
    at_full: dict[str, list[int]] = {}
    for one in outcomes:
        at_full.setdefault(one.defect, []).append(one.events * one.strength)
    return [one for one in outcomes if mean(at_full[one.defect]) / one.strength >= ENOUGH_EXPECTED]


def run_draw(draw: Draw) -> Outcome:
    return trial(draw.defect, draw.strength, draw.seed)


def trial(defect: str, strength: int = 1, seed: int = 0) -> Outcome:
    engine = FakeEngine(defect, strength=strength)
    app = (FakeSGLang if defect in NEED_SGLANG else FakeServer)(engine)
    events = None

    async def diagnosed(lab: Lab, report: Report) -> list[Diagnosis]:
        """What the re-runs of the diagnosis spoil doesn't count."""
        nonlocal events
        events = len(engine.spoiled)
        return await diagnose_report(lab, report)

    transports = {"http://fake": InProcess(app)}
    options = Options(
        "http://fake",
        seed=seed,
        max_new_tokens=24,
        transports=transports,
        restart=restarting(app),
        other_weights="other",
    )
    with patch("zerokl.check.checking.diagnose_report", diagnosed):
        report = asyncio.run(run_check(options, Console(file=io.StringIO())))
    if events is None:  # nothing differed
        events = len(engine.spoiled)
    kinds = tuple(diagnosis.kind for diagnosis in report.diagnoses)
    return Outcome(defect, strength, seed, events, report.exit_code == 1, kinds)
