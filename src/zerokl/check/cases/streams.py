"""Streamed against whole: the same ids and logprobs, whether they come one by one or all at once."""

from __future__ import annotations

from zerokl.check.cases.base import Case, Cost
from zerokl.check.cases.common import standard_asks, standard_cost
from zerokl.check.lab import Lab
from zerokl.check.targets.base import Can


async def streams(lab: Lab) -> None:
    for ask in standard_asks(lab):
        await lab.reference(ask)
        await lab.flush()
        streamed = (await lab.stream(ask.unscored(), "streamed"))[0]
        lab.happened(
            streamed.num_frames >= min(2, ask.new_tokens),
            "tokens came in several frames",
            f"{ask.new_tokens} tokens came in {streamed.num_frames} frames",
        )


def _cost(lab: Lab) -> Cost:
    return standard_cost(lab)


CASE = Case("streams", "streamed against whole", frozenset({Can.STREAM}), streams, _cost)
