"""Prompts and references that several cases share, so that each is computed once per run."""

from __future__ import annotations

from zerokl.check.answers import Ask
from zerokl.check.cases.base import Cost
from zerokl.check.lab import Lab

SHORT, MEDIUM, LONG = 0.6, 1.3, 2.4
"""Prompt lengths in pages: inside one page, into a second, two pages and a part."""


def standard_length(lab: Lab, number: int) -> int:
    """Lengths take turns, none of them on a page boundary."""
    pages = (SHORT, MEDIUM, LONG)[(number // 3 + number) % 3]
    return max(5, int(lab.page * pages) + number % 3)


def standard_ask(lab: Lab, number: int) -> Ask:
    """Greedy prompt `number` of the shared pool."""
    return lab.greedy(lab.prompts.prompt(standard_length(lab, number), number), lab.sizes.new_tokens)


def standard_asks(lab: Lab, count: int | None = None) -> list[Ask]:
    return [standard_ask(lab, number) for number in range(count or lab.sizes.prompts)]


def long_text(lab: Lab) -> tuple[int, ...]:
    """One text of a few chunks; many cases use its prefixes, whose every position then meets the same values."""
    return lab.prompts.prompt(long_length(lab), 1000)


def long_length(lab: Lab) -> int:
    return min(int(lab.chunk * lab.sizes.long_chunks) + 3, lab.facts.context - 80)


async def score_long_text(lab: Lab) -> tuple[int, ...]:
    """The long text, scored alone from a cold cache (once per run)."""
    text = long_text(lab)
    await lab.reference(lab.greedy(text, 0))
    return text


def standard_cost(lab: Lab, count: int | None = None) -> Cost:
    """Of asking the shared pool once, alone and cold."""
    asks = standard_asks(lab, count)
    return Cost(prefill=sum(len(ask.ids) for ask in asks), alone=sum(ask.new_tokens for ask in asks), answers=len(asks))
