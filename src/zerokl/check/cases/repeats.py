"""The same request again, cold and warm in turn."""

from __future__ import annotations

from zerokl.check.cases.base import Case, Cost
from zerokl.check.cases.common import standard_ask, standard_length
from zerokl.check.lab import Lab

ROUNDS = 2


async def repeats(lab: Lab) -> None:
    for number in range(min(2, lab.sizes.prompts)):
        ask = standard_ask(lab, number)
        await lab.reference(ask)
        for turn in range(ROUNDS):
            await lab.cold(ask.unscored(), f"again, cold ({turn + 1})")
            await lab.alone(ask.unscored(), f"again, warm ({turn + 1})")
    lab.happened(lab.tally.values > 0, f"asked {1 + 2 * ROUNDS} times", "no answer was repeated")


def _cost(lab: Lab) -> Cost:
    numbers = range(min(2, lab.sizes.prompts))
    once = Cost(prefill=sum(standard_length(lab, number) for number in numbers), answers=len(numbers))
    return (once + Cost(alone=lab.sizes.new_tokens * len(numbers))).times(1 + 2 * ROUNDS)


CASE = Case("repeats", "the same request again", frozenset(), repeats, _cost)
