"""How fast the server is, measured with three small requests, and what a set of cases will therefore take."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from zerokl.check.answers import Ask
from zerokl.check.cases import Case, Cost
from zerokl.check.lab import Lab
from zerokl.check.sizes import Sizes

PROBE_PROMPT, PROBE_TOKENS, PROBE_WIDTH = 128, 8, 6


@dataclass(frozen=True, slots=True)
class Rates:
    """Tokens per second; `overhead_s` per answer."""

    prefill: float
    alone: float
    crowd: float
    overhead_s: float = 0.01

    def seconds(self, cost: Cost) -> float:
        return (
            cost.prefill / self.prefill
            + cost.alone / self.alone
            + cost.crowd / self.crowd
            + cost.answers * self.overhead_s
        )


async def measure(lab: Lab) -> Rates:
    """Costs about as much as one case; what it asks is not compared. The first requests warm the server up: some
    compile kernels only now."""
    for asks in (
        [Ask(_prompt(lab, 9020), 2)],
        [Ask(lab.prompts.prompt(4, 9030 + number, "random"), 2) for number in range(PROBE_WIDTH)],
    ):
        await _timed(lab, asks)
    prompt = _prompt(lab, 9000)
    await lab.flush()
    prefill_s = await _timed(lab, [Ask(prompt, 0, logprobs=False)])
    short = [Ask(lab.prompts.prompt(4, 9001 + number, "random"), PROBE_TOKENS) for number in range(PROBE_WIDTH)]
    alone_s = await _timed(lab, short[:1])
    crowd_s = await _timed(lab, short)
    await lab.flush()
    return Rates(
        prefill=len(prompt) / prefill_s,
        alone=PROBE_TOKENS / alone_s,
        crowd=PROBE_TOKENS * PROBE_WIDTH / crowd_s,
    )


def _prompt(lab: Lab, number: int) -> tuple[int, ...]:
    return lab.prompts.prompt(min(PROBE_PROMPT, lab.facts.context // 4), number, "random")


async def _timed(lab: Lab, asks: Sequence[Ask]) -> float:
    started = time.monotonic()
    await lab.target.ask(asks)
    return max(1e-4, time.monotonic() - started)


def total_cost(cases: Sequence[Case], lab: Lab) -> Cost:
    return sum((case.cost(lab) for case in cases), Cost())


def fit(lab: Lab, cases: Sequence[Case], rates: Rates, seconds: float) -> Sizes:
    """Makes lab.sizes smaller until the estimate fits, but never so small that a case would be about nothing."""
    while rates.seconds(total_cost(cases, lab)) > seconds:
        smaller = _smaller(lab.sizes)
        if smaller == lab.sizes:
            break
        lab.sizes = smaller
    return lab.sizes


def _smaller(sizes: Sizes) -> Sizes:
    if sizes.new_tokens > 8:
        new_tokens, long_tokens = max(8, sizes.new_tokens * 4 // 5), max(24, sizes.long_tokens * 3 // 4)
        return replace(sizes, new_tokens=new_tokens, long_tokens=long_tokens)
    if len(sizes.neighbours) > 1 and sizes.neighbours[-1] > 7:
        return replace(sizes, neighbours=sizes.neighbours[:-1])
    if sizes.prompts > 2:
        return replace(sizes, prompts=sizes.prompts - 1)
    if sizes.thorough:
        return replace(sizes, thorough=False)
    return sizes
