"""A second turn after an answer that went on past the window: what decode left behind, after it has let things go."""

from __future__ import annotations

from zerokl.check.answers import Ask
from zerokl.check.cases.base import Case, Cost
from zerokl.check.lab import Lab
from zerokl.check.targets.base import Can

NEEDS = frozenset({Can.FLUSH, Can.CACHED_COUNT, Can.TOKEN_IDS})


async def window_turns(lab: Lab) -> None:
    """Turn 2 goes on at the end of turn 1's answer, and branches off inside it, where its window has passed by."""
    for number in range(_texts(lab)):
        await lab.flush()
        first = _first(lab, number)
        answer = (await lab.alone(first.unscored(), "turn 1, answered past the window"))[0]
        more = lab.prompts.prompt(5, 720 + number, "random")
        seconds = [
            lab.greedy((*answer.text_ids[:cut], *more), lab.sizes.new_tokens // 2)
            for cut in _cuts(lab, answer.text_ids)
        ]
        for second in seconds:
            warm = await lab.alone(second.unscored(), "turn 2 on what decode left behind")
            lab.expect_hit(warm, lab.page * (len(first.ids) // lab.page) + 1)
        for second in seconds:
            await lab.cold(second, "turn 2 alone, cold")


def _texts(lab: Lab) -> int:
    return 2 if lab.sizes.thorough else 1


def _first(lab: Lab, number: int) -> Ask:
    """Its prompt ends shortly before a page does; its answer leaves the whole prompt behind the window, and a page."""
    prompt = lab.prompts.prompt(2 * lab.page - 6 + number, 700 + number)
    return lab.greedy(prompt, lab.window + lab.page + 9)


def _cuts(lab: Lab, text: tuple[int, ...]) -> list[int]:
    """The end, and in front of it a place that saw the end of the prompt last."""
    return [len(text), len(text) - lab.page - 4]


def _cost(lab: Lab) -> Cost:
    prompt, answer, new = 2 * lab.page, lab.window + lab.page + 9, lab.sizes.new_tokens // 2
    one = Cost(prefill=prompt + 2 * (prompt + answer + lab.page), alone=answer + 4 * new, answers=5)
    return one.times(_texts(lab))


CASE = Case("window-turns", "second turn after decode past the window", NEEDS, window_turns, _cost, quick=False)
