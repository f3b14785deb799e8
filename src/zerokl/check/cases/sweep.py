"""Prompts of every size, to find the edges that nobody told: where a longer prompt takes another kernel, another
bucket, another chunk. The first rows of one text are scored in prompts of growing length and must stay the same.

length   5 ── 9 ── 17 ── 33 ── 65 ── 129 ── 257 ── 513         one past each power of two
bits     A    A     A    B     B      B      C      C
                    └────┘            └──────┘                halved until the edge is found: 31/32, 255/256
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from zerokl.check.cases.base import Case, Cost
from zerokl.check.cases.common import long_length, long_text
from zerokl.check.lab import Lab
from zerokl.check.targets.base import Can

SHORTEST, MOST_EDGES = 5, 4
Signature = tuple[object, ...]


async def sweep(lab: Lab) -> None:
    """Every score meets that of the other lengths in the ledger; edges are found by the first rows alone."""
    lengths = _lengths(lab)
    found = {length: await _signature(lab, length) for length in lengths}
    changes = [(low, high) for low, high in itertools.pairwise(lengths) if found[low] != found[high]]
    lab.edges = [await _edge(lab, low, high, found[low]) for low, high in changes[:MOST_EDGES]]
    more = f" and {len(changes) - MOST_EDGES} more" if len(changes) > MOST_EDGES else ""
    where = ", ".join(f"{edge - 1}/{edge}" for edge in lab.edges) + more
    lab.happened(True, f"bits change between prompts of {where} tokens" if where else _flat(lengths), "")


def _flat(lengths: Sequence[int]) -> str:
    return f"no edge in prompts of {lengths[0]} to {lengths[-1]} tokens"


async def _edge(lab: Lab, low: int, high: int, signature: Signature) -> int:
    """The first length whose rows are no longer those of `low`, if there is one edge between the two."""
    while high - low > 1:
        middle = (low + high) // 2
        if await _signature(lab, middle) == signature:
            low = middle
        else:
            high = middle
    return high


async def _signature(lab: Lab, length: int) -> Signature:
    """The bits of the rows that every prompt of the sweep has."""
    ask = lab.greedy(long_text(lab)[:length], 0)
    answer = (await lab.cold(ask, f"the first {length} tokens, scored"))[0]
    return tuple((row.logprob, row.top) for row in answer.rows if row.position < SHORTEST)


def _lengths(lab: Lab) -> list[int]:
    return [length for length in (2**power + 1 for power in range(2, 14)) if SHORTEST <= length <= long_length(lab)]


def _cost(lab: Lab) -> Cost:
    return Cost(prefill=sum(_lengths(lab)), answers=len(_lengths(lab)))


CASE = Case("sweep", "one text in prompts of every size", frozenset({Can.PROMPT_LOGPROBS}), sweep, _cost, quick=False)
