"""Weights exchanged while the server runs: once they are back, so are the bits, and nothing of the others is left.

Without --other-weights the server loads the same weights again, which must not change anything either.
"""

from __future__ import annotations

from zerokl.check.cases.base import Case, Cost
from zerokl.check.cases.common import standard_asks, standard_cost
from zerokl.check.lab import Lab
from zerokl.check.targets.base import Can, Updates


async def update(lab: Lab) -> None:
    """Warm after the update: a cached prefix of the other weights would show."""
    assert isinstance(lab.target, Updates), "the case needs Can.UPDATE_WEIGHTS"
    asks = standard_asks(lab)
    for ask in asks:
        await lab.reference(ask)
    await lab.flush()
    if lab.other_weights:
        await lab.target.update_weights(lab.other_weights)
        others = await lab.unrecorded([ask.unscored() for ask in asks])
        moved = [other.output for other in others] != [(await lab.reference(ask))[0].output for ask in asks]
        lab.happened(moved, "the other weights answered otherwise", "the other weights answer as these do")
    await lab.target.update_weights("")
    lab.new_epoch()
    lab.happened(True, "weights loaded while the server ran", "")
    for ask in asks:
        await lab.alone(ask.unscored(), "after an update of the weights, warm if anything was kept")
    for ask in asks:
        await lab.cold(ask, "after an update of the weights, cold")


def _cost(lab: Lab) -> Cost:
    return standard_cost(lab).times(4 if lab.other_weights else 3)


CASE = Case(
    "update", "before against after an update of weights", frozenset({Can.UPDATE_WEIGHTS}), update, _cost, quick=False
)
