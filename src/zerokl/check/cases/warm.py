"""Cached keys against computed ones: after a prefill of the same prompt, and after a first turn's decode."""

from __future__ import annotations

from zerokl.check.answers import Ask
from zerokl.check.cases.base import Case, Cost
from zerokl.check.lab import Lab
from zerokl.check.targets.base import Can


async def warm_prefix(lab: Lab) -> None:
    for number in range(lab.sizes.prompts):
        ask = lab.greedy(_prompt(lab, number), lab.sizes.new_tokens)
        await lab.reference(ask)
        await lab.flush()
        await lab.alone(ask.prefill_only(), "prefill only")
        warm = await lab.alone(ask.unscored(), "prompt cached by a prefill")
        if lab.can(Can.CACHED_COUNT):
            lab.expect_hit(warm, 2 * lab.page)
    if not lab.can(Can.CACHED_COUNT):
        await lab.expect_hit_by_time(Ask(lab.prompts.prompt(lab.chunk, 190), 1, logprobs=False))


async def warm_decode(lab: Lab) -> None:
    """Turn 2 = prompt + answer + a few ids more: its cached pages hold keys that decode steps wrote."""
    for number in range(lab.sizes.prompts):
        first = lab.greedy(lab.prompts.prompt(_first_length(lab), 200 + number), _answer_length(lab))
        await lab.flush()
        answer = (await lab.alone(first.unscored(), "turn 1"))[0]
        more = lab.prompts.prompt(5, 300 + number, "random")
        second = lab.greedy((*answer.text_ids, *more), lab.sizes.new_tokens)
        warm = await lab.alone(second.unscored(), "turn 2 on the keys of turn 1's decode")
        lab.expect_hit(warm, lab.page * (len(first.ids) // lab.page) + 1)
        await lab.cold(second, "turn 2 alone, cold")


def _prompt(lab: Lab, number: int) -> tuple[int, ...]:
    return lab.prompts.prompt(2 * lab.page + 3 + 7 * number, 100 + number)


def _first_length(lab: Lab) -> int:
    """So that the answer fills a page of its own: the prompt ends shortly before a page boundary."""
    return 2 * lab.page - 6


def _answer_length(lab: Lab) -> int:
    return max(lab.sizes.new_tokens // 2, 9)


def _prefix_cost(lab: Lab) -> Cost:
    length, new = 2 * lab.page + 12, lab.sizes.new_tokens
    return Cost(prefill=2 * length + 12, alone=2 * new, answers=3).times(lab.sizes.prompts)


def _decode_cost(lab: Lab) -> Cost:
    length, answer, new = _first_length(lab), _answer_length(lab), lab.sizes.new_tokens
    return Cost(prefill=2 * length + answer + 15, alone=answer + 2 * new, answers=3).times(lab.sizes.prompts)


WARM_PREFIX = Case("warm-prefix", "prompt cached against cold", frozenset({Can.FLUSH}), warm_prefix, _prefix_cost)
WARM_DECODE = Case(
    "warm-decode",
    "second turn cached against cold",
    frozenset({Can.FLUSH, Can.CACHED_COUNT, Can.TOKEN_IDS}),
    warm_decode,
    _decode_cost,
)
