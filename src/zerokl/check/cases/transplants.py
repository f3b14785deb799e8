"""A cached text's pages after another beginning, in another order, a page earlier: the same ids, but not the same keys.

cached       A B C          a cache that knows pages by their own ids alone would find
asked next   X B C          B and C
             A C B          C and B
             B C            both
"""

from __future__ import annotations

from zerokl.check.answers import Ask
from zerokl.check.cases.base import Case, Cost
from zerokl.check.lab import Lab
from zerokl.check.targets.base import Can

NEW_TOKENS = 4


async def transplants(lab: Lab) -> None:
    asks = _asks(lab)
    for ask in asks:
        await lab.reference(ask)
    await lab.flush()
    await lab.alone(lab.greedy(_text(lab), NEW_TOKENS).unscored(), "the text whose pages are moved")
    for ask in asks:
        await lab.alone(ask, "its pages after another beginning")
    again = await lab.alone(lab.greedy(_text(lab), NEW_TOKENS).unscored(), "the text again")
    if lab.can(Can.CACHED_COUNT):
        lab.expect_hit(again, 2 * lab.page)
    else:
        lab.happened(lab.tally.values > 0, f"{len(asks)} texts of the same pages", "nothing was compared")


def _text(lab: Lab) -> tuple[int, ...]:
    """Random ids: pages that repeat a pattern would be alike anyway."""
    return lab.prompts.prompt(3 * lab.page + 4, 975, "random")


def _asks(lab: Lab) -> list[Ask]:
    page, text = lab.page, _text(lab)
    first, second, third, rest = text[:page], text[page : 2 * page], text[2 * page : 3 * page], text[3 * page :]
    other = lab.prompts.prompt(page, 976, "random")
    moved = [(*other, *second, *third), (*first, *third, *second), (*second, *third)]
    return [lab.greedy((*ids, *rest), NEW_TOKENS).unscored() for ids in moved]


def _cost(lab: Lab) -> Cost:
    asks = _asks(lab)
    prefill = sum(len(ask.ids) for ask in asks)
    return Cost(2 * prefill + 3 * lab.page, alone=NEW_TOKENS * (2 * len(asks) + 2), answers=2 * len(asks) + 2)


CASE = Case(
    "transplants",
    "a cached text's pages after another beginning",
    frozenset({Can.FLUSH}),
    transplants,
    _cost,
    quick=False,
)
