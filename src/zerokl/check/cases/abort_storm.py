"""Waves of clients that hang up, some before their first token: what they leave in the cache is whole, or nothing."""

from __future__ import annotations

import asyncio

from zerokl.check.answers import Ask
from zerokl.check.cases.aborts import leave
from zerokl.check.cases.base import Case, Cost
from zerokl.check.cases.common import standard_ask
from zerokl.check.lab import Lab
from zerokl.check.targets.base import Can

WAVES, WIDTH, QUICK_WIDTH = 3, 6, 3
MOST_TOKENS = 5
"""Tokens that the most patient one takes; half of them take none."""


async def abort_storm(lab: Lab) -> None:
    """A target is streamed through each wave; then all prompts are asked again, warm from what was left, and cold."""
    target, waves = standard_ask(lab, 1), _waves(lab)
    leavers = [ask for wave in waves for ask in wave]
    for ask in (target, *map(_short, leavers)):
        await lab.reference(ask)
    await lab.flush()
    gone = 0
    async with lab.watching() as watch:
        for number, wave in enumerate(waves):
            how = f"through wave {number + 1} of a storm of hang-ups"
            tasks = [asyncio.create_task(_leave(lab, ask)) for ask in wave]
            await lab.stream(target.unscored(), how, neighbours=len(wave))
            gone += sum(await asyncio.gather(*tasks))
    closed = f"{gone} of {len(leavers)} streams closed before their end"
    lab.happened(2 * gone >= len(leavers), closed, f"only {closed}")
    watch.expect_some("aborted requests", watch.counted.aborted)
    lab.may_be_cached(leavers)
    for ask in leavers:
        await lab.alone(_short(ask), "warm from what a hung-up client left")
    await lab.flush()
    await lab.alone(target.unscored(), "after a storm of hang-ups")


async def _leave(lab: Lab, ask: Ask) -> bool:
    random = lab.random(f"leaver {ask.ids[:8]}")
    after = random.choice((0, random.randint(1, MOST_TOKENS)))
    return await leave(lab, ask, after, random.random() * lab.answer_s / 2)


def _waves(lab: Lab) -> list[list[Ask]]:
    """Prompts of a few pages, so that some are hung up on in the middle of their prefill."""
    width = min(WIDTH if lab.sizes.thorough else QUICK_WIDTH, lab.widest)
    return [[_leaver(lab, width * wave + number) for number in range(width)] for wave in range(WAVES)]


def _leaver(lab: Lab, number: int) -> Ask:
    prompt = lab.prompts.prompt(3 * lab.page + 5 + number, 860 + number)
    return lab.greedy(prompt, 4 * lab.sizes.new_tokens).unscored()


def _short(ask: Ask) -> Ask:
    return ask.generating(3)


def _cost(lab: Lab) -> Cost:
    target, leavers = standard_ask(lab, 1), [ask for wave in _waves(lab) for ask in wave]
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
