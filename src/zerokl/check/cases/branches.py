"""Several suffixes on one cached prefix, two families interleaved: what one branch leaves must not reach another."""

from __future__ import annotations

from zerokl.check.answers import Ask
from zerokl.check.cases.base import Case, Cost
from zerokl.check.lab import Lab
from zerokl.check.targets.base import Can

FAMILIES = 2
NEEDS = frozenset({Can.FLUSH, Can.CACHED_COUNT, Can.LISTS})


async def branches(lab: Lab) -> None:
    families = [_family(lab, number) for number in range(FAMILIES)]
    for asks in families:
        for ask in asks:
            await lab.reference(ask)
    await lab.flush()
    for number in range(FAMILIES):
        await lab.alone(lab.greedy(_prefix(lab, number), 0).prefill_only(), "prefill of the prefix")
    interleaved = [ask.unscored() for pair in zip(*families, strict=True) for ask in pair]
    for how, groups in (
        ("branches interleaved, one request", await lab.together(interleaved, "branches interleaved, in one request")),
        ("branches again, apart", await lab.apart(interleaved[::-1], "branches again, on connections of their own")),
    ):
        cached = [group[0].cached_tokens or 0 for group in groups]
        lab.happened(min(cached) >= 2 * lab.page, f"{how}: all on the cached prefix", f"{how}: cached tokens {cached}")


def _prefix(lab: Lab, number: int) -> tuple[int, ...]:
    return lab.prompts.prompt(2 * lab.page + 3, 500 + number)


def _family(lab: Lab, number: int) -> list[Ask]:
    """Suffixes of a few ids, to the page boundary, and over it."""
    lengths = [2, lab.page - 3, lab.page + 2][: 3 if lab.sizes.thorough else 2]
    suffixes = [lab.prompts.prompt(length, 510 + 10 * number + length, "random") for length in lengths]
    return [lab.greedy((*_prefix(lab, number), *suffix), lab.sizes.new_tokens // 2) for suffix in suffixes]


def _cost(lab: Lab) -> Cost:
    asks = [ask for number in range(FAMILIES) for ask in _family(lab, number)]
    whole = sum(len(ask.ids) for ask in asks)
    suffixes = whole - 2 * lab.page * len(asks)
    new = len(asks) * lab.sizes.new_tokens // 2
    return Cost(
        prefill=whole + FAMILIES * 2 * lab.page + 1.3 * suffixes, alone=new, crowd=2 * new, answers=3 * len(asks)
    )


CASE = Case("branches", "branches of a shared prefix, interleaved", NEEDS, branches, _cost)
