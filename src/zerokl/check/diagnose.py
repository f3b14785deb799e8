"""What kind of defect it is, with the evidence. Rules look at contrasts; where none fits, the answer is "unknown"."""

from __future__ import annotations

from collections.abc import Sequence

from zerokl.check.clues import ENOUGH_EXPECTED, Clues, Diagnosis, Kind
from zerokl.check.contrast import Count, Table, sightings
from zerokl.check.ledger import Comparison
from zerokl.check.rules import RULES
from zerokl.check.targets.base import Facts


def diagnose(comparisons: Sequence[Comparison], facts: Facts) -> Diagnosis | None:
    """The first rule that fits; None if nothing differs."""
    found = candidates(comparisons, facts)
    return found[0] if found else None


def candidates(comparisons: Sequence[Comparison], facts: Facts) -> list[Diagnosis]:
    """Of every rule that fits, the most specific first; "unknown" if none does, and nothing if nothing differs."""
    found = sightings(comparisons)
    differing = [one for one in found if one.differs]
    if not differing:
        return []
    clues = Clues(found, differing, Table(found), facts)
    lines = clues.table.lines()
    diagnoses = [diagnosis for rule in RULES if (diagnosis := rule(clues)) is not None]
    for diagnosis in diagnoses:
        diagnosis.evidence += [line for line in lines if line not in diagnosis.evidence]
    return diagnoses or [
        Diagnosis(Kind.UNKNOWN, "low", "the rows that differ have no one circumstance in common", lines)
    ]


def may_be_unrepeatable(comparisons: Sequence[Comparison]) -> bool:
    """So few rows were compared under equal circumstances that "never" means nothing yet."""
    found = sightings(comparisons)
    same, rest = Count(), Count()
    for one in found:
        (rest if one.factors else same).add(one.differs)
    return not same.differing and same.rows * rest.rate < ENOUGH_EXPECTED
