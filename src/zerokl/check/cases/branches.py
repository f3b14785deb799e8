"""Several suffixes on one cached prefix, two families interleaved: what one branch leaves must not reach another."""

from __future__ import annotations

from collections.abc import Sequence

from zerokl.check.answers import Answer, Ask
from zerokl.check.cases.base import Case, Cost
from zerokl.check.lab import Lab
from zerokl.check.targets.base import Can

FAMILIES = 2
NEEDS = frozenset({Can.FLUSH, Can.CACHED_COUNT})


async def branches(lab: Lab) -> None:
    families = [_family(lab, number) for number in range(FAMILIES)]
    for asks in families:
        for ask in asks:
            await lab.reference(ask)
    interleaved = [ask.unscored() for pair in zip(*families, strict=True) for ask in pair]
    await _seed(lab)
    _expect_hits(lab, await lab.together(interleaved, "branches interleaved, at once"))
    await _seed(lab)
    one_by_one = [await lab.alone(ask, "branches interleaved, one after the other") for ask in interleaved]
    _expect_hits(lab, one_by_one)
    _expect_hits(lab, await lab.apart(interleaved[::-1], "branches again, on connections of their own"))


async def _seed(lab: Lab) -> None:
    await lab.flush()
    for number in range(FAMILIES):
        await lab.alone(lab.greedy(_prefix(lab, number), 0).prefill_only(), "prefill of the prefix")


def _expect_hits(lab: Lab, groups: Sequence[Sequence[Answer]]) -> None:
    lab.expect_hit([group[0] for group in groups], 2 * lab.page)


def _prefix(lab: Lab, number: int) -> tuple[int, ...]:
    return lab.prompts.prompt(2 * lab.page + 3, 500 + number)


def _family(lab: Lab, number: int) -> list[Ask]:
    """Suffixes that fill a page of their own next to their sibling's, and one of a few ids."""
    lengths = [lab.page + 2, lab.page + 5, 2][: 3 if lab.sizes.thorough else 2]
    suffixes = [lab.prompts.prompt(length, 510 + 10 * number + length, "random") for length in lengths]
    return [lab.greedy((*_prefix(lab, number), *suffix), lab.sizes.new_tokens // 2) for suffix in suffixes]


def _cost(lab: Lab) -> Cost:
    asks = [ask for number in range(FAMILIES) for ask in _family(lab, number)]
    whole = sum(len(ask.ids) for ask in asks)
    suffixes = whole - 2 * lab.page * len(asks)
    new = len(asks) * lab.sizes.new_tokens // 2
    prefill = whole + 2 * FAMILIES * 2 * lab.page + 2.3 * suffixes
    return Cost(prefill, alone=2 * new, crowd=2 * new, answers=4 * len(asks))


CASE = Case("branches", "branches of a shared prefix, interleaved", NEEDS, branches, _cost, quick=False)
