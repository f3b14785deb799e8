"""The same requests in another order: a request's place in its batch must not matter."""

from __future__ import annotations

from zerokl.check.cases.base import Case, Cost
from zerokl.check.cases.common import standard_asks, standard_cost
from zerokl.check.lab import Lab

COUNT = 5


async def order(lab: Lab) -> None:
    asks = [ask.unscored() for ask in standard_asks(lab, COUNT)]
    shuffled = list(asks)
    lab.random("order").shuffle(shuffled)
    orders = {"in order": asks, "reversed": asks[::-1], "shuffled": shuffled}
    if not lab.sizes.thorough:
        del orders["shuffled"]
    for name, batch in orders.items():
        await lab.flush()
        async with lab.watching() as watch:
            await lab.together(batch, f"{COUNT} requests, {name}")
        watch.expect_width(COUNT, steps=max(1, lab.sizes.new_tokens // 8))
    lab.happened(True, "every request stood in several places", "")


def _cost(lab: Lab) -> Cost:
    pool = standard_cost(lab, COUNT)
    orders = 3 if lab.sizes.thorough else 2
    return Cost(prefill=pool.prefill, crowd=pool.alone, answers=pool.answers).times(orders)


CASE = Case("order", "one batch in several orders", frozenset(), order, _cost, quick=False)
