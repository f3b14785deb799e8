"""Requests that share their beginning and arrive together: none of it is cached yet, and all of them want it.

An engine may compute it once for all, but then the others must wait until it is there.
"""

from __future__ import annotations

from zerokl.check.answers import Ask
from zerokl.check.cases.base import Case, Cost
from zerokl.check.lab import Lab
from zerokl.check.targets.base import Can

NEW_TOKENS = 6


async def twins(lab: Lab) -> None:
    """Two equal prompts of more than a chunk, and one that leaves them on its way: in one request, then on connections
    of their own, one after the other while the first is computed."""
    asks = _asks(lab)
    for ask in dict.fromkeys(asks):
        await lab.reference(ask)
    await lab.flush()
    await lab.together(asks, "with its twins, cold, at once")
    await lab.flush()
    step = lab.usual_answer_s / 8
    await lab.apart(
        asks, "with its twins, cold, shortly after each other", [step * place for place in range(len(asks))]
    )
    lab.happened(lab.tally.values > 0, f"{len(asks)} requests with one beginning at once", "nothing was compared")


def _asks(lab: Lab) -> list[Ask]:
    whole = lab.prompts.prompt(_length(lab), 970)
    branch = (*whole[: _length(lab) * 2 // 3], *lab.prompts.prompt(lab.page, 971, "random"))
    return [lab.greedy(ids, NEW_TOKENS).unscored() for ids in (whole, whole, branch, whole)]


def _length(lab: Lab) -> int:
    """A chunk, and pages of their own behind it."""
    return min(lab.chunk + 3 * lab.page, lab.facts.context - 80) + 5


def _cost(lab: Lab) -> Cost:
    asks = _asks(lab)
    prefill, new = sum(len(ask.ids) for ask in asks), sum(ask.new_tokens for ask in asks)
    return Cost(1.6 * prefill, alone=new / 2, crowd=2 * new, answers=3 * len(asks))


CASE = Case(
    "twins", "one beginning, asked for at once, not cached yet", frozenset({Can.FLUSH}), twins, _cost, quick=False
)
