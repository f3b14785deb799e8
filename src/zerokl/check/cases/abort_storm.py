"""Waves of clients that hang up, some before their first token: what they leave in the cache is whole, or nothing.

Half of them are impatient: they go while their prompt is computed. Another stream, the target, is the clock for it:
each of its tokens is a step of the server. A server that decodes nothing meanwhile is timed by the wall.

target    ─●──●──●──●──●──●──●─        one token a step
impatient     ├───────┤                gone at the target's second token after they were sent
patient       ├──────────●●┤           gone after two tokens of their own
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from zerokl.check.answers import Ask
from zerokl.check.cases.aborts import Ticks, leave
from zerokl.check.cases.base import Case, Cost
from zerokl.check.cases.common import standard_ask
from zerokl.check.lab import Lab
from zerokl.check.targets.base import Can

WAVES, MOST_WAVES, WIDTH, QUICK_WIDTH = 3, 6, 6, 3
MOST_TOKENS, MOST_TICKS = 5, 5
"""Of its own that the most patient one takes; of the target's that the least impatient one waits for."""
ENOUGH_EARLY = 0.25
"""Share of all that must have gone before their first token."""


@dataclass(slots=True)
class Gone:
    """How many hung up before their answer was whole; how many of them before it had begun."""

    sent: int = 0
    at_all: int = 0
    early: int = 0

    @property
    def enough(self) -> bool:
        return 2 * self.at_all >= self.sent and self.early >= ENOUGH_EARLY * self.sent


async def abort_storm(lab: Lab) -> None:
    """The target is streamed through each wave; then all prompts are asked again, warm from what was left, and cold.
    Waves go on, with prompts never sent before, until enough clients left before their first token."""
    target, gone, sent = standard_ask(lab, 1), Gone(), list[Ask]()
    await lab.reference(target)
    for ask in (ask for number in range(WAVES) for ask in _wave(lab, number)):
        await lab.reference(_short(ask))
    await lab.flush()
    pause_s = lab.usual_answer_s
    async with lab.watching() as watch:
        for number in range(MOST_WAVES):
            if number >= WAVES and gone.enough:
                break
            sent += _wave(lab, number)
            early = gone.early
            await _ride_out(lab, target, _wave(lab, number), number, gone, pause_s)
            if gone.early == early:
                pause_s /= 2  # all of them had their first token already
    _judge(lab, gone)
    watch.expect_some("aborted requests", watch.counted.aborted)
    await lab.settle()
    lab.may_be_cached(sent)
    for ask in sent:
        await lab.alone(_short(ask), "warm from what a hung-up client left")
    for ask in sent[WAVES * len(_wave(lab, 0)) :]:
        await lab.reference(_short(ask))
    await lab.flush()
    await lab.alone(target.unscored(), "after a storm of hang-ups")


async def _ride_out(lab: Lab, target: Ask, wave: Sequence[Ask], number: int, gone: Gone, pause_s: float) -> None:
    """The leavers come once the target decodes."""
    ticks = Ticks()

    async def one(ask: Ask) -> None:
        await ticks.reach(1)
        random = lab.random(f"leaver {number} {ask.ids[:8]}")
        own, others = random.choice((0, random.randint(1, MOST_TOKENS))), random.randint(1, MOST_TICKS)
        early = None if own else ticks.within(others, random.uniform(0.1, 1.0) * pause_s)
        taken = await leave(lab, ask, own, early)
        gone.at_all += taken is not None
        gone.early += taken == 0

    gone.sent += len(wave)
    how = f"through wave {number + 1} of a storm of hang-ups"
    tasks = [asyncio.create_task(one(ask)) for ask in wave]
    try:
        await lab.stream(target.unscored(), how, ticks.tick, neighbours=len(wave))
    finally:
        ticks.end()
        await asyncio.gather(*tasks)


def _judge(lab: Lab, gone: Gone) -> None:
    closed = f"{gone.at_all} of {gone.sent} streams closed before their end, {gone.early} before their first token"
    lab.happened(gone.enough, closed, f"only {closed}")


def _wave(lab: Lab, number: int) -> list[Ask]:
    """Prompts of a few pages, so that some are hung up on in the middle of their prefill."""
    width = min(WIDTH if lab.sizes.thorough else QUICK_WIDTH, lab.widest)
    return [_leaver(lab, width * number + place) for place in range(width)]


def _leaver(lab: Lab, number: int) -> Ask:
    prompt = lab.prompts.prompt(3 * lab.page + 5 + number, 860 + number)
    return lab.greedy(prompt, 4 * lab.sizes.new_tokens).unscored()


def _short(ask: Ask) -> Ask:
    return ask.generating(3)


def _cost(lab: Lab) -> Cost:
    target, leavers = standard_ask(lab, 1), [ask for number in range(WAVES) for ask in _wave(lab, number)]
    prefill, new = sum(len(ask.ids) for ask in leavers), lab.sizes.new_tokens
    streamed = WAVES * new + len(leavers) * MOST_TOKENS
    return Cost(
        2 * prefill + 3 * len(target.ids), alone=6 * len(leavers) + new, crowd=streamed, answers=2 * len(leavers) + 5
    )


CASE = Case(
    "abort-storm",
    "cold against left by clients that hung up",
    frozenset({Can.STREAM, Can.FLUSH}),
    abort_storm,
    _cost,
    quick=False,
)
