"""Clients that go away: what an aborted request gives back must not be anybody else's."""

from __future__ import annotations

import asyncio

from zerokl.check.answers import Ask
from zerokl.check.cases.base import Case, Cost
from zerokl.check.cases.common import standard_ask, standard_asks
from zerokl.check.lab import Lab
from zerokl.check.outcome import CouldNotRun
from zerokl.check.targets.base import Can

LEAVERS = 4
AFTER = 2
"""Tokens that a leaver takes before it hangs up."""


async def aborts(lab: Lab) -> None:
    """Each target is streamed while neighbours hang up; then everything is asked once more."""
    targets = standard_asks(lab)[:2]
    for target in targets:
        await lab.reference(target)
    await lab.flush()
    gone = 0
    async with lab.watching() as watch:
        for target in targets:
            leavers = [asyncio.create_task(leave(lab, _leaver(lab, number))) for number in range(LEAVERS)]
            await lab.stream(target.unscored(), "while others hang up", neighbours=LEAVERS)
            gone += sum(await asyncio.gather(*leavers))
    lab.happened(gone > 0, "streams closed in the middle", "no stream could be closed before its end")
    watch.expect_some("aborted requests", watch.counted.aborted)
    await lab.flush()
    for target in targets:
        await lab.alone(target.unscored(), "after others hung up")


def _leaver(lab: Lab, number: int) -> Ask:
    return lab.greedy(standard_ask(lab, 80 + number).ids, 4 * lab.sizes.new_tokens).unscored()


async def leave(lab: Lab, ask: Ask, after: int = AFTER, pause_s: float = 0.0) -> bool:
    """Hangs up after so many tokens, or after a pause if that is none; True if that was before the answer was whole."""
    enough = asyncio.Event()
    lab.num_unrecorded += 1
    task = asyncio.create_task(lab.target.stream(ask, lambda tokens: enough.set() if tokens >= after else None))
    waiter = asyncio.create_task(enough.wait() if after else asyncio.sleep(pause_s))
    await asyncio.wait({task, waiter}, return_when=asyncio.FIRST_COMPLETED)
    waiter.cancel()
    left = not task.done()
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return left
    except CouldNotRun:
        return False
    return left


def _cost(lab: Lab) -> Cost:
    new = lab.sizes.new_tokens
    lengths = [len(_leaver(lab, number).ids) for number in range(LEAVERS)]
    targets = sum(len(ask.ids) for ask in standard_asks(lab)[:2])
    return Cost(prefill=2 * sum(lengths) + 2 * targets, alone=2 * new, crowd=2 * new + 8 * LEAVERS, answers=4)


CASE = Case("aborts", "alone against beside clients that hang up", frozenset({Can.STREAM}), aborts, _cost, quick=False)
