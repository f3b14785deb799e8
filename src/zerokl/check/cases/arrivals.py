"""Requests that come while another one decodes: short ones one by one, and a prefill of several chunks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from zerokl.check.answers import Ask
from zerokl.check.cases.base import Case, Cost
from zerokl.check.cases.common import long_length, long_text, standard_ask, standard_asks, standard_cost
from zerokl.check.lab import Lab
from zerokl.check.targets.base import Can


async def arrivals(lab: Lab) -> None:
    """Every request is a stream of its own; each starts when the one before has given some tokens."""
    asks = standard_asks(lab)
    for ask in asks:
        await lab.reference(ask)
    await lab.flush()
    async with lab.watching() as watch:
        await staggered(lab, [ask.unscored() for ask in asks])
    watch.expect_overlap(2)


async def staggered(lab: Lab, asks: Sequence[Ask]) -> None:
    """Streams, each beginning when the one before has given some tokens."""
    begun = [asyncio.Event() for _ in asks]

    async def one(place: int) -> None:
        if place:
            await begun[place - 1].wait()
        after = min(3, asks[place].new_tokens)
        try:
            how, on_token = f"arriving {place} streams later", _setting(begun[place], after)
            await lab.stream(asks[place], how, on_token, neighbours=len(asks) - 1)
        finally:
            begun[place].set()

    await asyncio.gather(*(one(place) for place in range(len(asks))))


async def long_prefill(lab: Lab) -> None:
    """A target decodes; a prompt of several chunks arrives, and is answered before the target ends."""
    target = lab.greedy(standard_ask(lab, 2).ids, max(48, lab.sizes.new_tokens))
    await lab.reference(target)
    text = long_text(lab)
    await lab.flush()
    begun = asyncio.Event()
    tokens_at: dict[str, int] = {}
    count = 0

    def on_token(tokens: int) -> None:
        nonlocal count
        count = tokens
        if tokens >= 3:
            begun.set()

    async def intruder() -> None:
        await begun.wait()
        tokens_at["before"] = count
        ask = lab.greedy(text, 0).unscored().generating(2)
        await lab.together([ask], "arriving while another decodes", neighbours=1)
        tokens_at["after"] = count

    async with lab.watching() as watch:
        task = asyncio.create_task(intruder())
        try:
            await lab.stream(target.unscored(), "while a long prompt is prefilled", on_token, neighbours=1)
        finally:
            begun.set()
            await task
    lab.happened(
        tokens_at["before"] < tokens_at["after"] < target.new_tokens,
        "the target decoded before, while and after the long prefill",
        f"the long prefill did not fall into the decode: {tokens_at}",
    )
    watch.expect_some("chunked prefills", watch.counted.chunked_prefills)
    watch.expect_some("steps that decode and prefill at once", watch.counted.mixed_steps)


def _setting(event: asyncio.Event, after: int) -> Callable[[int], None]:
    return lambda tokens: event.set() if tokens >= after else None


def _arrivals_cost(lab: Lab) -> Cost:
    pool = standard_cost(lab)
    return Cost(prefill=pool.prefill, crowd=pool.alone, answers=pool.answers)


def _prefill_cost(lab: Lab) -> Cost:
    new = max(48, lab.sizes.new_tokens)
    return Cost(prefill=long_length(lab) + 4 * lab.page, alone=2 * new, answers=3)


ARRIVALS = Case(
    "arrivals", "alone against joined by later streams", frozenset({Can.STREAM}), arrivals, _arrivals_cost, quick=False
)
LONG_PREFILL = Case(
    "long-prefill", "alone against a long prefill mid-decode", frozenset({Can.STREAM}), long_prefill, _prefill_cost
)
