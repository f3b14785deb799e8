"""A storm of preemptions: more conversations than there is room for, each answered past the window, turn after turn.

Who is put off goes on later from a checkpoint, or from nothing, with windows that have passed and states that were
given away; `pressure` has short answers and one turn.
"""

from __future__ import annotations

from zerokl.check.answers import Answer, Ask
from zerokl.check.cases.base import Case, Cost
from zerokl.check.cases.pressure import is_small, pool_of, require_small
from zerokl.check.lab import Lab
from zerokl.check.outcome import NotPossible
from zerokl.check.targets.base import Can

NEEDS = frozenset({Can.COUNTERS, Can.FLUSH, Can.TOKEN_IDS})
OVERFULL = 1.8
TURNS = 2


async def storm(lab: Lab) -> None:
    require_small(lab)
    if pool_of(lab) < 3 * _needed(lab):
        raise NotPossible(f"needs a cache for three answers past the window: {3 * _needed(lab)} tokens or more")
    await lab.flush()
    asks = [
        lab.greedy(lab.prompts.prompt(_length(lab), 900 + number), _answer(lab)).unscored()
        for number in range(_count(lab))
    ]
    asked: list[Ask] = []
    for turn in range(TURNS):
        asked += asks
        async with lab.watching() as watch:
            answers = [group[0] for group in await lab.together(asks, f"more than there is room for, turn {turn + 1}")]
        watch.expect_some("preemptions", watch.counted.preemptions)
        watch.expect_some("evictions", watch.counted.evicted)
        asks = [_next(lab, answer, place) for place, answer in enumerate(answers)]
    for ask in asked:
        await lab.cold(ask, "one of them alone, cold")


def _next(lab: Lab, answer: Answer, place: int) -> Ask:
    """From a place inside the answer, not the same for all, so that states of several ages are asked for."""
    kept = answer.text_ids[: _length(lab) + (1 + place % 4) * lab.page // 2]
    return lab.greedy((*kept, *lab.prompts.prompt(3, 940 + place, "random")), _answer(lab)).unscored()


def _length(lab: Lab) -> int:
    return max(4, lab.page // 2 - 3)


def _answer(lab: Lab) -> int:
    return lab.window + lab.page + 5


def _needed(lab: Lab) -> int:
    return lab.page * (1 + (_length(lab) + 2 * lab.page + _answer(lab)) // lab.page)


def _count(lab: Lab) -> int:
    return max(3, int(OVERFULL * pool_of(lab) / _needed(lab)))


def _cost(lab: Lab) -> Cost:
    if not is_small(lab) or pool_of(lab) < 3 * _needed(lab):
        return Cost()
    tokens = TURNS * _count(lab) * _answer(lab)
    prefill = TURNS * _count(lab) * (_length(lab) + lab.page)
    return Cost(2 * prefill, alone=tokens, crowd=1.5 * tokens, answers=2 * TURNS * _count(lab))


CASE = Case("storm", "alone against preempted again and again", NEEDS, storm, _cost, quick=False)
