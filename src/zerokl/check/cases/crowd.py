"""Alone against in company: the same requests among 1, 2, 7 and 32 neighbours."""

from __future__ import annotations

from zerokl.check.answers import Ask
from zerokl.check.cases.base import Case, Cost
from zerokl.check.cases.common import standard_asks, standard_cost
from zerokl.check.lab import Lab


async def crowd(lab: Lab) -> None:
    targets = standard_asks(lab)
    for ask in targets:
        await lab.reference(ask)
    for neighbours in lab.sizes.neighbours:
        asks = _crowd(lab, targets, neighbours + 1)
        await lab.flush()
        async with lab.watching() as watch:
            await lab.together(asks, f"among {neighbours} others")
        watch.expect_width(len(asks), steps=max(1, lab.sizes.new_tokens // 8))


def _crowd(lab: Lab, targets: list[Ask], width: int) -> list[Ask]:
    """Targets at the front, in the middle and at the end; neighbours from a pool of their own, all generating only."""
    chosen = targets[:width]
    asks = [_neighbour(lab, number) for number in range(width - len(chosen))]
    for index, ask in enumerate(chosen):
        asks.insert(index * len(asks) // max(1, len(chosen) - 1) if len(chosen) > 1 else 0, ask.unscored())
    return asks


def _neighbour(lab: Lab, number: int) -> Ask:
    """Prompts below a page of different lengths; the same one in every crowd, so they too meet their own values."""
    length = 4 + (5 * number) % (lab.page - 4)
    return lab.greedy(lab.prompts.prompt(length, 50 + number), lab.sizes.new_tokens).unscored()


def _cost(lab: Lab) -> Cost:
    width = sum(neighbours + 1 for neighbours in lab.sizes.neighbours)
    return standard_cost(lab) + Cost(prefill=width * lab.page, crowd=width * lab.sizes.new_tokens, answers=width)


CASE = Case("crowd", "alone against among neighbours", frozenset(), crowd, _cost)
