"""More requests than the cache has room for: some are put off and computed again, and nobody may notice.

Only a server with a small pool can be brought there in reasonable time, such as `zerokl serve --max-total-tokens 2048`.
"""

from __future__ import annotations

from zerokl.check.answers import Ask
from zerokl.check.cases.base import Case, Cost
from zerokl.check.lab import Lab
from zerokl.check.outcome import NotPossible
from zerokl.check.targets.base import Can

LARGEST_POOL = 8192
OVERFULL = 1.6
"""Tokens that all requests need at their end, over the tokens of the pool; their prompts alone must fit."""


async def pressure(lab: Lab) -> None:
    require_small(lab)
    asks = _asks(lab)
    for ask in asks:
        await lab.reference(ask)
    await lab.flush()
    async with lab.watching() as watch:
        await lab.together([ask.unscored() for ask in asks], "in a cache too small for all")
    watch.expect_some("preemptions", watch.counted.preemptions)


def _asks(lab: Lab) -> list[Ask]:
    """Prompts of half a page, each growing by at least a page while it is answered."""
    new_tokens = max(lab.page + lab.page // 2, lab.sizes.new_tokens)
    length = max(4, lab.page // 2 - 3)
    pages_each = -(-(length + new_tokens) // lab.page)
    count = max(2, int(OVERFULL * pool_of(lab) / (pages_each * lab.page)))
    return [lab.greedy(lab.prompts.prompt(length, 600 + number), new_tokens) for number in range(count)]


def require_small(lab: Lab) -> None:
    if not is_small(lab):
        raise NotPossible(f"needs a server with a cache of at most {LARGEST_POOL} tokens, this one has {pool_of(lab)}")


def pool_of(lab: Lab) -> int:
    return lab.facts.pool_tokens or 10**9


def is_small(lab: Lab) -> bool:
    return pool_of(lab) <= LARGEST_POOL


def _cost(lab: Lab) -> Cost:
    if not is_small(lab):
        return Cost()
    asks = _asks(lab)
    prefill, new = sum(len(ask.ids) for ask in asks), sum(ask.new_tokens for ask in asks)
    return Cost(prefill=2.3 * prefill, alone=new, crowd=new, answers=2 * len(asks))


CASE = Case(
    "pressure", "alone against preempted for lack of room", frozenset({Can.COUNTERS}), pressure, _cost, quick=False
)
