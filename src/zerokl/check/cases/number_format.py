"""Every number of the run must be a float32 with all its digits: rounding would hide what the others look for."""

from __future__ import annotations

from zerokl.check.cases.base import Case, Cost
from zerokl.check.cases.common import standard_asks
from zerokl.check.lab import Lab
from zerokl.check.targets.base import Can


async def number_format(lab: Lab) -> None:
    """Looks at the numbers of all cases so far; asks only if there were none."""
    if not lab.num_numbers:
        for ask in standard_asks(lab, 1):
            await lab.reference(ask)
    lab.tally.values = lab.num_numbers
    lab.tally.differing = len(lab.not_float32)
    lab.happened(lab.num_numbers > 0, "all numbers of the run read", "no number came")
    if lab.not_float32:
        examples = ", ".join(repr(value) for value in lab.not_float32[:3])
        lab.tally.event(f"not a float32: {examples}")


CASE = Case(
    "number-format",
    "every number a whole float32",
    frozenset({Can.WIDE_FLOATS}),
    number_format,
    lambda lab: Cost(),
    looks_back=True,
)
