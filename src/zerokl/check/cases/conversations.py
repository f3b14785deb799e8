"""Conversations that share a beginning, part, and part again, all answered at once, turn by turn.

group 0   prefix ─┬─ suffix, answer ─┬─ suffix, answer          submitted g0b0, g1b0, g0b1, g1b1, ...
                  ├─ suffix, answer  └─ from inside the answer
                  └─ ...
"""

from __future__ import annotations

from zerokl.check.answers import Answer, Ask
from zerokl.check.cases.base import Case, Cost
from zerokl.check.lab import Lab
from zerokl.check.targets.base import Can

GROUPS, BRANCHES, TURNS = 2, 3, 3
NEEDS = frozenset({Can.FLUSH, Can.CACHED_COUNT, Can.TOKEN_IDS})


async def conversations(lab: Lab) -> None:
    """Every turn of every branch is asked again at the end, alone and cold."""
    await lab.flush()
    asks = [_first(lab, group, branch) for branch in range(BRANCHES) for group in range(GROUPS)]
    for group in range(GROUPS):
        await lab.alone(lab.greedy(_prefix(lab, group), 0).prefill_only(), "prefill of the common beginning")
    asked: list[Ask] = []
    async with lab.watching() as watch:
        for turn in range(TURNS):
            asked += asks
            answers = [group[0] for group in await lab.together(asks, f"conversations interleaved, turn {turn + 1}")]
            lab.expect_hit(answers, lab.page)
            asks = [_next(lab, answer, turn, place) for place, answer in enumerate(answers)]
    watch.expect_width(len(asks), steps=1)
    for ask in asked:
        await lab.cold(ask, "one turn alone, cold")


def _prefix(lab: Lab, group: int) -> tuple[int, ...]:
    return lab.prompts.prompt(2 * lab.page + 3, 740 + group)


def _first(lab: Lab, group: int, branch: int) -> Ask:
    """Branches part after the common beginning; the second one inside it, at a place of its own."""
    prefix = _prefix(lab, group)
    kept = prefix[: len(prefix) - 2 * group - 1] if branch == 1 else prefix
    suffix = lab.prompts.prompt(_suffix_length(lab, branch), 750 + 10 * group + branch, "random")
    return lab.greedy((*kept, *suffix), lab.sizes.new_tokens).unscored()


def _next(lab: Lab, answer: Answer, turn: int, place: int) -> Ask:
    """From the answer's end, or, for every third conversation, from inside it."""
    text = answer.text_ids
    kept = text[: len(text) - len(answer.output) // 2] if place % 3 == 2 else text
    suffix = lab.prompts.prompt(_suffix_length(lab, place), 800 + 20 * turn + place, "random")
    return lab.greedy((*kept, *suffix), lab.sizes.new_tokens).unscored()


def _suffix_length(lab: Lab, number: int) -> int:
    """Of a few ids, or so that the answer crosses a page's edge."""
    return (lab.page // 2 + 5, lab.page - 3, 2)[number % 3]


def _cost(lab: Lab) -> Cost:
    new, count = lab.sizes.new_tokens, GROUPS * BRANCHES
    suffixes = sum(_suffix_length(lab, number) for number in range(count))
    cold = sum(count * (2 * lab.page + turn * new) + (turn + 1) * suffixes for turn in range(TURNS))
    warm = TURNS * (suffixes + count * lab.page / 2)
    tokens = TURNS * count * new
    return Cost(cold + warm + 4 * lab.page, alone=tokens, crowd=tokens, answers=2 * TURNS * count)


CASE = Case("conversations", "turns that branch, interleaved against alone", NEEDS, conversations, _cost, quick=False)
