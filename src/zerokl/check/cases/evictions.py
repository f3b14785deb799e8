"""What the cache had to let go: computed again, or brought back from a second tier, and no bit may tell.

Only a server with a small pool can be filled in reasonable time, such as `zerokl serve --max-total-tokens 2048`; the
second tier is there with --enable-hierarchical-cache.
"""

from __future__ import annotations

from zerokl.check.cases.base import Case, Cost
from zerokl.check.cases.pressure import is_small, pool_of, require_small
from zerokl.check.lab import Lab
from zerokl.check.targets.base import Can

NEEDS = frozenset({Can.FLUSH, Can.CACHED_COUNT, Can.COUNTERS})
OVERFULL = 1.2
"""Tokens of other prompts, over the pool's."""


async def evictions(lab: Lab) -> None:
    """Two texts are cached, the pool is filled with others, the texts are asked again, twice."""
    require_small(lab)
    asks = [lab.greedy(_text(lab, number), lab.sizes.new_tokens) for number in range(2)]
    for ask in asks:
        await lab.reference(ask)
    await lab.flush()
    for ask in asks:
        await lab.alone(ask.unscored(), "before others filled the cache")
    async with lab.watching() as watch:
        for number in range(_num_fillers(lab)):
            await lab.alone(lab.greedy(_filler(lab, number), 0).prefill_only(), "others fill the cache")
    watch.expect_some("evictions", watch.counted.evicted)
    whole = [lab.page * ((len(ask.ids) - 1) // lab.page) for ask in asks]
    async with lab.watching() as watch:
        for ask, hit in zip(asks, whole, strict=True):
            again = await lab.alone(ask.unscored(), "after others filled the cache")
            if lab.can(Can.TWO_TIERS):
                lab.expect_cached(again, [hit], "what was evicted came back whole")
            else:
                lab.expect_cached(again, [0], "what was evicted was computed again")
            lab.expect_cached(await lab.alone(ask.unscored(), "and once more"), [hit], "and was cached anew")
    if lab.can(Can.TWO_TIERS):
        watch.expect_some("loads from the second tier", watch.counted.loaded)


async def second_tier(lab: Lab) -> None:
    """The first tier is emptied between turns, so that each turn finds everything on the second."""
    for number in range(2):
        ask = lab.greedy(_text(lab, number), lab.sizes.new_tokens)
        await lab.reference(ask)
        await lab.flush()
        answer = (await lab.alone(ask.unscored(), "turn 1, on the first tier"))[0]
        for turn in range(2):
            more = lab.prompts.prompt(lab.page // 2 + 3, 860 + 2 * number + turn, "random")
            following = lab.greedy((*answer.text_ids, *more), lab.sizes.new_tokens)
            await lab.flush_first_tier()
            hit = lab.page * ((len(answer.text_ids) - 1) // lab.page)
            async with lab.watching() as watch:
                warm = await lab.alone(following.unscored(), "a turn on what the second tier brings back")
            lab.expect_cached(warm, [hit], "all that was cached came from the second tier")
            watch.expect_some("loads from the second tier", watch.counted.loaded)
            answer = warm[0]
        await lab.cold(lab.greedy(answer.text_ids, 1), "all turns, alone and cold")


def _text(lab: Lab, number: int) -> tuple[int, ...]:
    return lab.prompts.prompt(2 * lab.page + 7 + number, 850 + number)


def _filler(lab: Lab, number: int) -> tuple[int, ...]:
    return lab.prompts.prompt(_filler_length(lab), 870 + number, "random")


def _filler_length(lab: Lab) -> int:
    """Few long ones, each in the pool without trouble."""
    return max(lab.page + 1, min(pool_of(lab) // 4, lab.facts.context // 2))


def _num_fillers(lab: Lab) -> int:
    """The last part of a page that each leaves isn't cached."""
    cached_each = lab.page * (_filler_length(lab) // lab.page)
    return 1 + int(OVERFULL * pool_of(lab) / cached_each)


def _evictions_cost(lab: Lab) -> Cost:
    if not is_small(lab):
        return Cost()
    fillers = _num_fillers(lab) * _filler_length(lab)
    text, new = 2 * lab.page + 8, lab.sizes.new_tokens
    return Cost(prefill=fillers + 6 * text, alone=8 * new, answers=8 + _num_fillers(lab))


def _second_tier_cost(lab: Lab) -> Cost:
    text, new = 2 * lab.page + 8, lab.sizes.new_tokens
    return Cost(prefill=2 * (4 * text + 4 * new + 3 * lab.page), alone=8 * new, answers=10)


EVICTIONS = Case("evictions", "before against after the cache let go", NEEDS, evictions, _evictions_cost, quick=False)
SECOND_TIER = Case(
    "second-tier",
    "computed against brought back from a second tier",
    NEEDS | {Can.TWO_TIERS, Can.TOKEN_IDS},
    second_tier,
    _second_tier_cost,
    quick=False,
)
