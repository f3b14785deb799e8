"""Differences in company, told apart by what the widths of the batches, the place in them and the cases say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from zerokl.check.clues import EXPLAINS, Clues, Diagnosis, Kind, accused, confidence
from zerokl.check.contrast import Count, Factor, Sighting

K = TypeVar("K")
SETTLED = {"widths": 2, "uneven": 6}
"""Tokens after which all of a batch decode: a long prompt in it may be computed in several steps."""


def company(clues: Clues) -> Diagnosis | None:
    """Told apart by what the widths of the batches, the place in them and the cases say."""
    cached_too = clues.share(lambda one: Factor.CACHE in one.factors) >= EXPLAINS
    if clues.share(lambda one: Factor.COMPANY in one.factors) < EXPLAINS:
        return None
    if cached_too and not accused(clues, Factor.COMPANY):
        return None
    in_company = [one for one in clues.found if _is_steady(one) and not one.meeting.first_setting.neighbours]
    known = [one for one in in_company if one.comparison.setting.case == "widths"]
    steady = known or in_company
    widths = _count_by(steady, lambda one: one.comparison.setting.neighbours + 1)
    evidence = [(f"width {width}", str(count)) for width, count in sorted(widths.items())]
    sure = confidence(clues, 1.0)
    if steady and not any(count.differing for count in widths.values()):
        uneven = Count()
        for one in in_company:
            if one.comparison.setting.case == "uneven":
                uneven.add(one.differs)
        if uneven.differing:
            evidence.append(("unequal lengths in one batch", str(uneven)))
            summary = "batches of equal lengths are right, of unequal ones not: the longest decides, or padding leaks"
            return Diagnosis(Kind.PADDING, sure, summary, evidence)
        summary = "rows differ only while another request is prefilled or joins, not in steady batches"
        return Diagnosis(Kind.MIXED, sure, summary, evidence)
    places = _count_by([one for one in steady if one.comparison.setting.neighbours >= 2], _place)
    if _only(places, "middle"):
        evidence += [(f"{place} of its batch", str(count)) for place, count in places.items()]
        return Diagnosis(Kind.PLACE, sure, "only requests in the middle of a batch differ", evidence)
    if _are_powers_clean(widths):
        summary = "batches of 2, 4, 8 ... requests are right, all others differ: padding up to a power of two leaks"
        return Diagnosis(Kind.PADDING, sure, summary, evidence)
    clean = [width for width, count in widths.items() if not count.differing]
    limit = f" (not up to {max(clean)})" if clean and max(clean) < min(set(widths) - set(clean)) else ""
    summary = f"a request's numbers depend on how many others are decoded with it{limit}"
    return Diagnosis(Kind.BATCH, sure, summary, evidence)


def _is_steady(one: Sighting) -> bool:
    """In the middle of an answer of a batch that was sent at once: neighbours neither start nor end here."""
    answer, setting = one.comparison.answer, one.comparison.setting
    index = one.meeting.position - len(answer.ask.ids)
    if setting.case in SETTLED:
        return SETTLED[setting.case] <= index < len(answer.output) - 1
    in_middle = len(answer.output) // 3 <= index < len(answer.output) - len(answer.output) // 4
    return in_middle and setting.neighbours > 0 and setting.case in ("crowd", "order", "sampled")


def _place(one: Sighting) -> str:
    setting = one.comparison.setting
    return "first" if setting.place == 0 else "last" if setting.place == setting.neighbours else "middle"


def _only(counts: dict[str, Count], name: str) -> bool:
    """`name` differs, and the others, which were compared, don't."""
    others = [count for other, count in counts.items() if other != name]
    found = counts.get(name, Count())
    expected = sum(count.rows for count in others) * found.rate
    return found.differing > 0 and expected >= 3 and not any(count.differing for count in others)


def _are_powers_clean(widths: dict[int, Count]) -> bool:
    powers = [count for width, count in widths.items() if width & (width - 1) == 0 and width > 2]
    others = [count for width, count in widths.items() if width & (width - 1)]
    rows, differing = sum(count.rows for count in others), sum(count.differing for count in others)
    expected = sum(count.rows for count in powers) * differing / max(1, rows)
    return differing > 0 and expected >= 3 and not any(count.differing for count in powers)


def _count_by(found: Sequence[Sighting], key: Callable[[Sighting], K]) -> dict[K, Count]:
    counts: dict[K, Count] = {}
    for one in found:
        counts.setdefault(key(one), Count()).add(one.differs)
    return counts
