"""Prompts that end around every boundary: 1 to 4 ids, pages, attention chunk, prefill chunk; one more, one less.

All are prefixes of one text that was scored once, so the row that follows each prompt must be that text's row.
"""

from __future__ import annotations

from zerokl.check.cases.base import Case, Cost
from zerokl.check.cases.common import long_length, score_long_text
from zerokl.check.lab import Lab
from zerokl.check.targets.base import Can

NEW_TOKENS = 3
NEEDS = frozenset({Can.PROMPT_LOGPROBS})


async def lengths(lab: Lab) -> None:
    text = await score_long_text(lab)
    for length in _cold(lab):
        await lab.cold(lab.greedy(text[:length], NEW_TOKENS).unscored(), f"the first {length} tokens, cold")
    if lab.can(Can.CACHED_COUNT):
        await lab.flush()
        await lab.alone(lab.greedy(text, 0).prefill_only(), "prefill only")
        for length in _boundaries(lab):
            await lab.alone(lab.greedy(text[:length], NEW_TOKENS).unscored(), f"the first {length} tokens, warm")
    lab.happened(True, f"prompts of {len(_boundaries(lab))} lengths", "")


def _boundaries(lab: Lab) -> list[int]:
    page = lab.page
    around = [page, lab.chunk]
    if lab.sizes.thorough:  # powers of two: for what the server has not told
        around += [2 * page, lab.facts.attention_chunk, *(2**power for power in range(6, 13))]
    wanted = {1, 2, 3, 4, *(edge + step for edge in around for step in (-1, 0, 1))}
    return sorted(length for length in wanted if 1 <= length < long_length(lab))


def _cold(lab: Lab) -> list[int]:
    """Short ones all, long ones where the budget allows it."""
    limit = 2 * lab.page + 1 if lab.sizes.thorough else lab.page + 1
    chosen = [length for length in _boundaries(lab) if length <= limit]
    if lab.sizes.thorough:
        chosen += [lab.facts.attention_chunk + step for step in (-1, 0, 1)]
    return sorted({length for length in chosen if length < long_length(lab)})


def _cost(lab: Lab) -> Cost:
    cold, warm = _cold(lab), _boundaries(lab)
    prefill = sum(cold) + len(warm) * lab.page / 2 + long_length(lab)
    return Cost(prefill, alone=NEW_TOKENS * (len(cold) + len(warm)), answers=len(cold) + len(warm) + 1)


CASE = Case("lengths", "prompts ending around every boundary", NEEDS, lengths, _cost, quick=False)
