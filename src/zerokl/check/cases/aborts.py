"""Clients that go away: what an aborted request gives back must not be anybody else's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress

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
            gone += sum(taken is not None for taken in await asyncio.gather(*leavers))
    lab.happened(gone > 0, "streams closed in the middle", "no stream could be closed before its end")
    watch.expect_some("aborted requests", watch.counted.aborted)
    await lab.settle()
    await lab.flush()
    for target in targets:
        await lab.alone(target.unscored(), "after others hung up")


def _leaver(lab: Lab, number: int) -> Ask:
    return lab.greedy(standard_ask(lab, 80 + number).ids, 4 * lab.sizes.new_tokens).unscored()


async def leave(lab: Lab, ask: Ask, after: int = AFTER, early: Awaitable[None] | None = None) -> int | None:
    """Hangs up after so many tokens, or when `early` is over if that is none. Returns how many tokens it took; None if
    the answer was whole before."""
    taken, enough = 0, asyncio.Event()

    def on_token(tokens: int) -> None:
        nonlocal taken
        taken = tokens
        if tokens >= after:
            enough.set()

    lab.num_unrecorded += 1
    task = asyncio.create_task(lab.target.stream(ask, on_token))
    waiter = asyncio.ensure_future(enough.wait() if early is None else early)
    await asyncio.wait({task, waiter}, return_when=asyncio.FIRST_COMPLETED)
    waiter.cancel()
    left = None if task.done() else taken
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return left
    except CouldNotRun:
        return None
    return left


class Ticks:
    """Tokens of one stream as the clock of others: a server's steps, however long they take."""

    def __init__(self) -> None:
        self.count = 0
        self._over = False
        self._news = asyncio.Event()

    def tick(self, tokens: int) -> None:
        self.count = tokens
        self._wake()

    def end(self) -> None:
        """No more will come: nobody waits any longer."""
        self._over = True
        self._wake()

    async def reach(self, count: int) -> None:
        while self.count < count and not self._over:
            await self._news.wait()

    async def within(self, more: int, seconds: float) -> None:
        """So many tokens more, or so many seconds if they come sooner."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.reach(self.count + more), seconds)

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()


def _cost(lab: Lab) -> Cost:
    new = lab.sizes.new_tokens
    lengths = [len(_leaver(lab, number).ids) for number in range(LEAVERS)]
    targets = sum(len(ask.ids) for ask in standard_asks(lab)[:2])
    return Cost(prefill=2 * sum(lengths) + 2 * targets, alone=2 * new, crowd=2 * new + 8 * LEAVERS, answers=4)


CASE = Case("aborts", "alone against beside clients that hang up", frozenset({Can.STREAM}), aborts, _cost, quick=False)
