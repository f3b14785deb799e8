"""One batch in which each request wants something else: scores, samples, another top, no logprobs, one token only.

What one of them asks for must not reach another: a flag of the batch, a row of scores, a temperature.
"""

from __future__ import annotations

from dataclasses import replace

from zerokl.check.answers import Ask
from zerokl.check.cases.base import Case, Cost
from zerokl.check.cases.common import standard_ask, standard_asks
from zerokl.check.lab import Lab
from zerokl.check.targets.base import Can


async def mixture(lab: Lab) -> None:
    """Everything is known alone; then all at once, in two orders."""
    asks = _asks(lab)
    for ask in asks:
        await lab.reference(ask)
    for how, batch in (("among others that want other things", asks), ("the same, reversed", asks[::-1])):
        await lab.flush()
        async with lab.watching() as watch:
            await lab.together(batch, how)
        watch.expect_overlap(3)


def _asks(lab: Lab) -> list[Ask]:
    """Greedy ones first and last, so that every kind has one on both sides."""
    plain = [ask.unscored() for ask in standard_asks(lab)]
    asks = [plain[0], replace(plain[1], top=1), replace(standard_ask(lab, 91).unscored(), logprobs=False)]
    if lab.can(Can.PROMPT_LOGPROBS):
        asks += [standard_ask(lab, 92), standard_ask(lab, 93).generating(1)]
    if lab.can(Can.SEEDS):
        seed = lab.random("mixture").randrange(2**31)
        asks += [
            replace(plain[0], temperature=1.0, seed=seed),
            replace(plain[1], temperature=0.7, top_p=0.9, seed=seed),
        ]
    return [*asks, plain[-1]]


def _cost(lab: Lab) -> Cost:
    asks = _asks(lab)
    prefill, new = sum(len(ask.ids) for ask in asks), sum(ask.new_tokens for ask in asks)
    return Cost(3 * prefill, alone=new, crowd=2 * new, answers=3 * len(asks))


CASE = Case("mixture", "alone against among others' wishes", frozenset(), mixture, _cost)
