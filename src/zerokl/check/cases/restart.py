"""The server started anew in between: what it answered before is what it must answer after."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from zerokl.check.answers import Ask
from zerokl.check.cases.base import Case, Cost
from zerokl.check.cases.common import standard_asks
from zerokl.check.lab import Lab
from zerokl.check.outcome import CouldNotRun, NotPossible
from zerokl.check.targets.base import Can

PATIENCE_S, PAUSE_S = 300.0, 0.05
PROBE = Ask((1, 2, 3), 1, logprobs=False)


async def restart(lab: Lab) -> None:
    """References before, the command, the same after: cold, and in company."""
    if lab.restart is None:
        raise NotPossible("needs a command that restarts the server: --restart-command")
    asks = _asks(lab)
    for ask in asks:
        await lab.reference(ask)
    await _restarted(lab)
    for ask in asks:
        await lab.cold(ask, "after a restart, alone, cold")
    await lab.flush()
    await lab.together([ask.unscored() for ask in asks], "after a restart, in company")


async def _restarted(lab: Lab) -> None:
    """Runs the command; that the server was really away is seen by asking it, or by counters that start anew."""
    assert lab.restart is not None
    before = await lab.target.counters()
    command = asyncio.ensure_future(lab.restart())
    away = False
    started = time.monotonic()
    while not command.done() or not await _answers(lab):
        away = away or not await _answers(lab)
        if time.monotonic() - started > PATIENCE_S:
            command.cancel()
            raise CouldNotRun(f"{PATIENCE_S:.0f} s after the restart command the server still doesn't answer")
        await asyncio.sleep(PAUSE_S)
    await command
    after = await lab.target.counters()
    anew = before.submitted is not None and (after.submitted or 0) < before.submitted
    lab.happened(
        away or anew,
        f"the server was away, and back after {time.monotonic() - started:.1f} s",
        "nothing shows that the server was restarted: it answered all the time, and its counters went on",
    )
    lab.new_epoch()
    fingerprint = (await lab.target.facts()).fingerprint
    if fingerprint != lab.facts.fingerprint:
        lab.tally.fail(f"another server came back: fingerprint {fingerprint}, not {lab.facts.fingerprint}")


async def _answers(lab: Lab) -> bool:
    try:
        await lab.target.ask([PROBE])
    except CouldNotRun:
        return False
    return True


def _asks(lab: Lab) -> list[Ask]:
    """The shared pool, and one of it sampled with a seed."""
    asks = standard_asks(lab)
    if lab.can(Can.SEEDS):
        asks.append(replace(asks[0], temperature=0.8, top_p=0.95, seed=lab.random("restart").randrange(2**31)))
    return asks


def _cost(lab: Lab) -> Cost:
    if lab.restart is None:
        return Cost()
    asks = _asks(lab)
    prefill, new = sum(len(ask.ids) for ask in asks), sum(ask.new_tokens for ask in asks)
    return Cost(3 * prefill, alone=2 * new, crowd=new, answers=3 * len(asks))


CASE = Case("restart", "before against after a restart", frozenset(), restart, _cost, quick=False)
