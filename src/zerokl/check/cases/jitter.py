"""Answers continued from random places, in random order, at random times: what no plan of ours would think of.

Every position of every answer has been seen before, alone and cold, so each row has something to meet.
"""

from __future__ import annotations

from zerokl.check.answers import Ask
from zerokl.check.cases.base import Case, Cost
from zerokl.check.cases.common import standard_asks, standard_cost
from zerokl.check.lab import Lab
from zerokl.check.targets.base import Can

LONGEST_PAUSE_S = 0.4


async def jitter(lab: Lab) -> None:
    asks = []
    for ask in standard_asks(lab):
        asks += _continuations(lab, ask, (await lab.reference(ask))[0].output)
    random = lab.random("jitter")
    random.shuffle(asks)
    pauses = [_pause(lab, random.random()) for _ in asks]
    await lab.flush()
    async with lab.watching() as watch:
        await lab.apart(asks, "from a random place at a random time", pauses)
    watch.expect_overlap(3)


def _continuations(lab: Lab, ask: Ask, output: tuple[int, ...]) -> list[Ask]:
    """The same answer from its beginning and from two random places."""
    random = lab.random(f"jitter {ask.ids[:4]}")
    cuts = [0, *random.sample(range(1, ask.new_tokens), 2)]
    return [lab.greedy((*ask.ids, *output[:cut]), ask.new_tokens - cut).unscored() for cut in cuts]


def _pause(lab: Lab, fraction: float) -> float:
    """Half of them come at once, the others within the time of an answer."""
    return max(0.0, fraction - 0.5) * min(lab.usual_answer_s, LONGEST_PAUSE_S)


def _cost(lab: Lab) -> Cost:
    pool = standard_cost(lab)
    return Cost(prefill=3 * pool.prefill + pool.alone, crowd=2 * pool.alone, answers=3 * pool.answers)


CASE = Case(
    "jitter",
    "continued from random places and times",
    frozenset({Can.TOKEN_IDS, Can.ARRIVALS}),
    jitter,
    _cost,
    quick=False,
)
