"""Where a prompt is cut into chunks: the same text scored with its cuts moved by a cached prefix and by company."""

from __future__ import annotations

from dataclasses import replace

from zerokl.check.cases.base import Case, Cost
from zerokl.check.cases.common import long_length, score_long_text
from zerokl.check.lab import Lab
from zerokl.check.targets.base import Can

NEEDS = frozenset({Can.PROMPT_LOGPROBS, Can.CACHED_SCORES})


async def chunks(lab: Lab) -> None:
    text = await score_long_text(lab)
    await _cuts_moved_by_cache(lab, text)
    await _cuts_moved_by_company(lab, text)


async def _cuts_moved_by_cache(lab: Lab, text: tuple[int, ...]) -> None:
    """Scores wanted from s on: what is cached before s is kept, and the chunks are counted from there."""
    await lab.flush()
    await lab.alone(lab.greedy(text, 0).prefill_only(), "prefill only")
    for start in _starts(lab, len(text)):
        ask = lab.greedy(text, 0)
        how = f"chunks counted from a cached prefix, scores from {start}"
        moved = (await lab.alone(replace(ask, score_from=start), how))[0]
        lab.happened(
            bool(moved.cached_tokens),
            "cuts moved by a cached prefix",
            f"nothing was cached before position {start}",
        )


async def _cuts_moved_by_company(lab: Lab, text: tuple[int, ...]) -> None:
    """Short prompts in front take a part of the first step's budget, so the text is cut earlier."""
    await lab.flush()
    front = [lab.greedy(lab.prompts.prompt(lab.page // 2 + 7, 400 + number), 1).unscored() for number in range(3)]
    async with lab.watching() as watch:
        await lab.together([*front, lab.greedy(text, 0).generating(1)], "sharing its first step with short prompts")
    watch.expect_some("chunked prefills", watch.counted.chunked_prefills)


def _starts(lab: Lab, length: int) -> list[int]:
    page, chunk = lab.page, lab.chunk
    wanted = [page + 1, 3 * page, length - chunk // 2] if lab.sizes.thorough else [length - chunk // 2]
    return sorted({start for start in wanted if page <= start < length - 1})


def _cost(lab: Lab) -> Cost:
    length = long_length(lab)
    suffixes = sum(length - start + lab.page / 2 for start in _starts(lab, length))
    return Cost(prefill=3 * length + suffixes + 3 * lab.page, crowd=4, answers=3 + len(_starts(lab, length)))


CASE = Case("chunks", "one text, its chunks cut elsewhere", NEEDS, chunks, _cost)
