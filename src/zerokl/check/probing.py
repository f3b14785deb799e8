"""What a server doesn't say about itself, found out by asking: the unit in which it reuses cached prefixes."""

from __future__ import annotations

import math
from dataclasses import replace

from zerokl.check.answers import Ask
from zerokl.check.prompts import Prompts
from zerokl.check.targets.base import Can, Facts, Target

LENGTHS = (19, 38, 71, 137, 263, 519)
"""Prefixes to ask again: each just past a power of two, so that pages of 1, 16, 48, 64, 256 and 512 are told apart."""


async def with_page_size(target: Target, facts: Facts, prompts: Prompts) -> Facts:
    """facts with the page size that the counts of cached tokens show: what all hits are multiples of. Unchanged where
    the server told it, counts nothing, or found nothing again (then nothing is known, and cases that need a hit say
    so)."""
    if facts.page_size is not None or Can.CACHED_COUNT not in target.abilities:
        return facts
    lengths = [length for length in LENGTHS if length < facts.context]
    text = prompts.prompt(lengths[-1], 9100, "random")
    await target.ask([Ask(text, 1, logprobs=False)])
    hits = []
    for length in lengths:
        (answer,) = (await target.ask([Ask(text[:length], 1, logprobs=False)]))[0]
        hits.append(answer.cached_tokens or 0)
    page = math.gcd(*hits)
    return replace(facts, page_size=page) if page else facts
