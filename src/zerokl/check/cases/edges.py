"""Branches at every offset around a page, a window and a convolution's taps: each edge is one text cut one token on.

text      ─────────────────── page ──────────────── window ──────── window + page
branches              ┊┊┊┊┊┊┊┊┊            ┊┊┊┊┊┊┊┊┊          ┊┊┊┊┊┊┊┊┊      one or two other ids follow
"""

from __future__ import annotations

from zerokl.check.answers import Ask
from zerokl.check.cases.base import Case, Cost
from zerokl.check.lab import Lab
from zerokl.check.targets.base import Can

NEW_TOKENS = 3
NEEDS = frozenset({Can.FLUSH, Can.CACHED_COUNT})


async def edges(lab: Lab) -> None:
    branches = _branches(lab)
    for ask in branches:
        await lab.reference(ask)
    lab.random("edges").shuffle(branches)
    await _seed(lab)
    for ask in branches:
        await lab.alone(ask, "a branch of a cached text")
    await _seed(lab)
    answers = await lab.together(branches, "all branches at once")
    cached = sum(bool(group[0].cached_tokens) for group in answers)
    lab.happened(
        cached >= sum(len(ask.ids) > lab.page + 2 for ask in branches),
        f"{len(branches)} branches around {len(_edges(lab))} edges",
        f"{cached} of {len(branches)} branches found their text in the cache",
    )


async def _seed(lab: Lab) -> None:
    await lab.flush()
    await lab.alone(lab.greedy(_text(lab), 0).prefill_only(), "prefill of the text")


def _text(lab: Lab) -> tuple[int, ...]:
    return lab.prompts.prompt(_edges(lab)[-1] + lab.taps + 1, 730)


def _edges(lab: Lab) -> list[int]:
    """The last one is a page's edge that has the whole window, and a page, before it."""
    past = lab.page * (-(-lab.window // lab.page) + 1)
    return sorted({lab.page, 2 * lab.page, lab.window, past})


def _offsets(lab: Lab) -> range:
    reach = lab.taps if lab.sizes.thorough else 1
    return range(-reach, reach + 1)


def _branches(lab: Lab) -> list[Ask]:
    """The ids after the cut are few, so that the first answers are drawn while the taps still see what is before it."""
    text, asks = _text(lab), []
    for cut in sorted({edge + offset for edge in _edges(lab) for offset in _offsets(lab)}):
        suffix = lab.prompts.prompt(1 + cut % 2, 731 + cut, "random")
        asks.append(lab.greedy((*text[:cut], *suffix), NEW_TOKENS).unscored())
    return asks


def _cost(lab: Lab) -> Cost:
    lengths = [len(ask.ids) for ask in _branches(lab)]
    warm = len(lengths) * lab.page / 2 + len(_text(lab))
    tokens = NEW_TOKENS * len(lengths)
    return Cost(prefill=sum(lengths) + 2 * warm, alone=2 * tokens, crowd=tokens, answers=3 * len(lengths) + 2)


CASE = Case("edges", "branches at every offset around a page, a window, taps", NEEDS, edges, _cost, quick=False)
