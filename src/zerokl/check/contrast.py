"""Which circumstances are unequal between two rows that should be equal, and how often rows differ when only one is.

This is the evidence of a diagnosis: a row that differs when nothing but the company differed accuses the batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from zerokl.check.ledger import Comparison, Difference, Meeting, Setting


class Factor(StrEnum):
    """One circumstance that is unequal between the two sides of a meeting."""

    PHASE = "decode against prefill"
    """Of the row itself, or of earlier keys: a longer prompt prefills what the other side decoded."""
    END = "end of a prompt against inside of one"
    COMPANY = "in company against alone"
    CACHE = "cached prefix against computed"
    STREAM = "streamed against whole"
    ROUTE = "other route"
    SERVER = "other server"
    LENGTH = "scored in a longer prompt against in a shorter one"
    TEMPERATURE = "at another temperature"
    TOP = "another number of top logprobs"
    EPOCH = "after a restart or update against before"


Factors = frozenset[Factor]
NOTHING: Factors = frozenset()


@dataclass(frozen=True, slots=True)
class Sighting:
    """A meeting with everything that the rules look at."""

    meeting: Meeting
    comparison: Comparison
    factors: Factors

    @property
    def differs(self) -> bool:
        return bool(self.meeting.kinds)

    @property
    def only_drawn(self) -> bool:
        """The tokens differ although the distribution that they were drawn from is the same."""
        return self.meeting.kinds == ["token"] and bool(self.comparison.answer.ask.top)

    @property
    def sides(self) -> tuple[Setting, Setting]:
        return self.meeting.first_setting, self.comparison.setting


ACQUITTED = 16
"""Rows that may have come from a cache or not, and all agree: then the cache is not to blame."""


def factors(meeting: Meeting, other: Setting, *, perhaps: bool = True) -> Factors:
    """`perhaps`: also what may have been cached, without anybody having counted it."""
    first = meeting.first_setting
    shorter, longer = sorted((first.prompt_tokens, other.prompt_tokens))
    keys_decoded = shorter != longer and meeting.position > shorter
    decoded = keys_decoded or (meeting.first_phase == "decoded") != (meeting.phase == "decoded")
    unequal = {
        Factor.PHASE: decoded,
        Factor.END: not decoded and meeting.first_phase != meeting.phase,
        Factor.COMPANY: first.neighbours > 0 or other.neighbours > 0,
        Factor.CACHE: (first.cached_tokens or 0) != (other.cached_tokens or 0)
        or (perhaps and first.perhaps_cached != other.perhaps_cached),
        Factor.STREAM: first.stream != other.stream,
        Factor.ROUTE: first.route != other.route,
        Factor.SERVER: first.server != other.server,
        Factor.LENGTH: meeting.first_phase == meeting.phase == "scored" and shorter != longer,
        Factor.TEMPERATURE: first.temperature != other.temperature,
        Factor.TOP: first.top != other.top,
        Factor.EPOCH: first.epoch != other.epoch,
    }
    return frozenset(factor for factor, differs in unequal.items() if differs)


def sightings(comparisons: Iterable[Comparison]) -> list[Sighting]:
    """What was perhaps cached is an unequal circumstance, until enough such rows agree."""
    compared = list(comparisons)
    found = _sightings(compared, perhaps=True)
    only_cached = Table(found).pure(Factor.CACHE)
    if only_cached.rows >= ACQUITTED and not only_cached.differing:
        return _sightings(compared, perhaps=False)
    return found


def _sightings(comparisons: Iterable[Comparison], *, perhaps: bool) -> list[Sighting]:
    return [
        Sighting(meeting, comparison, factors(meeting, comparison.setting, perhaps=perhaps))
        for comparison in comparisons
        for meeting in comparison.meetings
    ]


@dataclass(slots=True)
class Count:
    rows: int = 0
    differing: int = 0

    def add(self, differs: bool) -> None:
        self.rows += 1
        self.differing += differs

    @property
    def rate(self) -> float:
        return self.differing / self.rows if self.rows else 0.0

    def __str__(self) -> str:
        return f"{self.differing} of {self.rows} rows differ"


class Table:
    """Rows and differing rows for every combination of factors."""

    def __init__(self, found: Sequence[Sighting]) -> None:
        self.counts: dict[Factors, Count] = {}
        for one in found:
            self.counts.setdefault(one.factors, Count()).add(one.differs)

    def pure(self, *only: Factor) -> Count:
        """Rows whose sides differ in exactly these."""
        return self.counts.get(frozenset(only), Count())

    def lines(self) -> list[tuple[str, str]]:
        """The combinations, most accusing first."""
        ranked = sorted(self.counts.items(), key=lambda item: (-item[1].rate, len(item[0]), sorted(item[0])))
        return [(" + ".join(sorted(names)) or "nothing unequal", str(count)) for names, count in ranked]


def logprob_differences(found: Sequence[Sighting]) -> list[Difference]:
    """The logprobs that differ in these meetings."""
    wanted = {(id(one.comparison), one.meeting.position) for one in found if one.differs}
    seen: set[int] = set()
    differences = []
    for one in found:
        if id(one.comparison) in seen:
            continue
        seen.add(id(one.comparison))
        differences += [
            item
            for item in one.comparison.differences
            if item.kind == "logprob" and (id(one.comparison), item.position) in wanted
        ]
    return differences
