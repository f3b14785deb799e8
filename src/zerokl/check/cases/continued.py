"""An answer's tail generated again from its head: the first new row comes from prefill, the old one came from decode.

It needs no prompt scores, so it also works where rescoring is not possible.
"""

from __future__ import annotations

from zerokl.check.cases.base import Case, Cost
from zerokl.check.cases.common import standard_asks
from zerokl.check.lab import Lab
from zerokl.check.targets.base import Can

TAIL = 4


async def continued(lab: Lab) -> None:
    for ask in standard_asks(lab):
        answer = (await lab.reference(ask))[0]
        for cut in _cuts(ask.new_tokens):
            head = (*ask.ids, *answer.output[:cut])
            tail = lab.greedy(head, min(TAIL, ask.new_tokens - cut)).unscored()
            await lab.cold(tail, f"the answer continued from its token {cut}")
    lab.happened(lab.tally.values > 0, "decoded rows met rows that end a prefill", "no answer could be continued")


def _cuts(new_tokens: int) -> list[int]:
    return sorted({1, new_tokens // 2, new_tokens - 1})


def _cost(lab: Lab) -> Cost:
    cost = Cost()
    for ask in standard_asks(lab):
        for cut in _cuts(ask.new_tokens):
            cost += Cost(prefill=len(ask.ids) + cut, alone=min(TAIL, ask.new_tokens - cut), answers=1)
    return cost


CASE = Case("continued", "an answer continued from its middle", frozenset({Can.TOKEN_IDS}), continued, _cost)
