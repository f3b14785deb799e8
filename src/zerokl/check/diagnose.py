"""What kind of defect it is, with the evidence. Rules look at contrasts; where none fits, the answer is "unknown".

A rule is tried only on the rows that differ. The order matters: more specific patterns come first, since a chunk
boundary also shows whenever a cache hit moves the boundary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from zerokl.check.bits import from_bits
from zerokl.check.contrast import NOTHING, Count, Factor, Sighting, Table, logprob_differences, sightings
from zerokl.check.ledger import Comparison, Setting
from zerokl.check.targets.base import Facts

WRONG_CONTENT = 0.5
"""A logprob that is off by more than this was computed from other numbers, not in another order: bfloat16 models move
by up to 0.1 when sums are taken in another order."""
ROUNDING = 4 * 2.0**-23
"""Times max(1, |logprob|): the error of taking log(softmax) instead of log_softmax."""
K = TypeVar("K")
ENOUGH_EXPECTED = 6.0
"""Differing rows, had a circumstance nothing to do with it; fewer, and their absence may be luck."""
EXPLAINS = 0.95
"""Share of the differing rows that a rule must cover."""


class Kind(StrEnum):
    BATCH = "batch-size dependence"
    PADDING = "padding or graph bucket"
    PLACE = "place in the batch"
    MIXED = "prefill in the same step"
    ABORT = "aborted neighbours"
    PREEMPTION = "preempted requests"
    CACHE = "cache reuse corruption"
    SHAPE = "step-size dependence"
    PHASE = "prefill/decode kernel mismatch"
    LOG_SOFTMAX = "log-softmax mismatch"
    CHUNK = "chunk boundary"
    TILE = "KV tile boundary"
    SEED = "seed handling"
    STREAM = "streaming"
    ROUTE = "route"
    DIGITS = "digits lost in print"
    BUCKET = "prompt length bucket"
    RESTART = "other bits after a restart"
    UPDATE = "other bits after an update of weights"
    UNREPEATABLE = "not repeatable"
    SERVER = "the servers differ"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Diagnosis:
    kind: Kind
    confidence: str
    """high, medium or low."""
    summary: str
    evidence: list[tuple[str, str]] = field(default_factory=list)
    """What was compared, and what came out."""


@dataclass(frozen=True, slots=True)
class Clues:
    """All meetings of the run, the differing ones among them, and the contrasts."""

    found: Sequence[Sighting]
    differing: Sequence[Sighting]
    table: Table
    facts: Facts

    def share(self, accept: Callable[[Sighting], bool]) -> float:
        return sum(map(accept, self.differing)) / len(self.differing)


def diagnose(comparisons: Sequence[Comparison], facts: Facts) -> Diagnosis | None:
    """None if nothing differs."""
    found = sightings(comparisons)
    differing = [one for one in found if one.differs]
    if not differing:
        return None
    clues = Clues(found, differing, Table(found), facts)
    for rule in RULES:
        diagnosis = rule(clues)
        if diagnosis is not None:
            diagnosis.evidence += [line for line in clues.table.lines() if line not in diagnosis.evidence]
            return diagnosis
    lines = clues.table.lines()
    return Diagnosis(Kind.UNKNOWN, "low", "the rows that differ have no one circumstance in common", lines)


def _confidence(clues: Clues, explained: float) -> str:
    if len(clues.differing) >= 6 and explained >= EXPLAINS:
        return "high"
    return "medium" if len(clues.differing) >= 2 else "low"


def unrepeatable(clues: Clues) -> Diagnosis | None:
    """Rows differ even where nothing is unequal, about as often as anywhere."""
    same = clues.table.counts.get(NOTHING, Count())
    rest = Count(len(clues.found) - same.rows, len(clues.differing) - same.differing)
    if not same.differing or same.rate < rest.rate / 4:
        return None
    return Diagnosis(
        Kind.UNREPEATABLE,
        "high" if same.differing >= 3 else "medium",
        "the same request, alone and under equal circumstances, doesn't repeat: races, atomics, or time",
        [("nothing unequal", str(same)), ("anything unequal", str(rest))],
    )


def seeds(clues: Clues) -> Diagnosis | None:
    """Other tokens were drawn from equal distributions."""
    drawn = [one for one in clues.differing if one.only_drawn]
    share = len(drawn) / len(clues.differing)
    if share < EXPLAINS or all(one.comparison.answer.ask.greedy for one in drawn):
        return None
    return Diagnosis(
        Kind.SEED,
        _confidence(clues, share),
        "logprobs and rankings agree, the drawn tokens don't: the noise depends on more than seed and position",
        [("other token from an equal distribution", f"{len(drawn)} of {len(clues.differing)} differing rows")],
    )


def servers(clues: Clues) -> Diagnosis | None:
    if clues.share(lambda one: Factor.SERVER in one.factors) < EXPLAINS:
        return None
    distances = sorted(_distances(clues.differing))
    met = [one for one in clues.found if Factor.SERVER in one.factors]
    other_token = sum("token" in one.meeting.kinds for one in met)
    evidence = [
        ("largest |d| of a logprob", f"{distances[-1] if distances else 0:.2e}"),
        ("median |d| of those that differ", f"{distances[len(distances) // 2] if distances else 0:.2e}"),
        ("another token was chosen", f"{other_token} of {len(met)} rows"),
    ]
    summary = "each server agrees with itself, but not with the other"
    return Diagnosis(Kind.SERVER, "high", summary, evidence)


def epochs(clues: Clues) -> Diagnosis | None:
    """Nothing differs but what was answered before a restart or an update, and after it."""
    share = clues.share(lambda one: Factor.EPOCH in one.factors)
    if share < EXPLAINS:
        return None
    updates = sum(one.comparison.setting.case == "update" for one in clues.differing)
    kind, name = (Kind.UPDATE, "an update of the weights") if updates else (Kind.RESTART, "a restart")
    rest = Count(len(clues.found), len(clues.differing))
    summary = f"the server agrees with itself up to {name}, and not with what it answered before it"
    return Diagnosis(kind, _confidence(clues, share), summary, [("all rows", str(rest))])


def hang_ups(clues: Clues) -> Diagnosis | None:
    summary = "requests differ only beside or after aborted ones: an abort gives back what others still use"
    return _one_case(clues, ("aborts", "abort-storm"), Kind.ABORT, summary)


def preemptions(clues: Clues) -> Diagnosis | None:
    summary = "requests differ only where the cache is too small for all: what is computed again comes out otherwise"
    return _one_case(clues, ("pressure",), Kind.PREEMPTION, summary)


def streams(clues: Clues) -> Diagnosis | None:
    return _one_factor(clues, Factor.STREAM, Kind.STREAM, "a stream tells something else than the whole answer")


def routes(clues: Clues) -> Diagnosis | None:
    return _one_factor(clues, Factor.ROUTE, Kind.ROUTE, "two routes give different numbers for one request")


def chunk_cuts(clues: Clues) -> Diagnosis | None:
    """Rows right after a cut of exactly one side."""
    rows = [one for one in clues.differing if _cut_known(one)]
    at_cut = [one for one in rows if _is_cut_of_one_side(one, clues.facts.chunk)]
    others = len(clues.differing) - len(rows)
    if len(at_cut) < 2 or len(at_cut) < 0.9 * len(rows) or len(at_cut) < others / 4:
        return None
    where = ", ".join(str(position) for position in sorted({one.meeting.position for one in at_cut})[:6])
    return Diagnosis(
        Kind.CHUNK,
        _confidence(clues, len(at_cut) / len(rows)),
        "the first row after a chunk's cut differs from the same row inside a chunk",
        [("rows at a cut of one side only", f"{len(at_cut)} of {len(rows)} differing rows"), ("positions", where)],
    )


def tiles(clues: Clues) -> Diagnosis | None:
    """Differing rows sit at multiples of a power of two, while most compared rows don't."""
    if clues.share(lambda one: Factor.COMPANY in one.factors) > 0.5:
        return None
    positions = [one.meeting.position for one in clues.differing if one.meeting.phase != "decoded"]
    everywhere = [one.meeting.position for one in clues.found if one.meeting.phase != "decoded"]
    for size in (1024, 512, 256, 128, 64, 32, 16):
        if len(positions) < 2 or len(positions) < EXPLAINS * len(clues.differing):
            return None
        hits = [position for position in positions if position % size == 0]
        usual = sum(position % size == 0 for position in everywhere) / len(everywhere)
        if len(hits) >= EXPLAINS * len(positions) and usual < 0.3 and len(set(positions)) > 1:
            return Diagnosis(
                Kind.TILE,
                _confidence(clues, len(hits) / len(positions)),
                f"rows differ where the position is a multiple of {size}",
                [
                    (f"differing rows at multiples of {size}", f"{len(hits)} of {len(positions)}"),
                    (f"compared rows at multiples of {size}", f"{100 * usual:.0f} %"),
                ],
            )
    return None


def step_size(clues: Clues) -> Diagnosis | None:
    """Company, cache hits and decode all move the bits, a little: a step's sums depend on how many tokens it has."""
    accused = [factor for factor in (Factor.COMPANY, Factor.CACHE, Factor.PHASE, Factor.END) if _accused(clues, factor)]
    if len(accused) < 2 or Factor.COMPANY not in accused or _largest(clues.differing) > WRONG_CONTENT:
        return None
    return Diagnosis(
        Kind.SHAPE,
        _confidence(clues, 1.0),
        "company, cached prefixes or the phase move the bits alike: results depend on how many tokens share a step",
        [(factor.value, str(clues.table.pure(factor))) for factor in accused],
    )


def may_be_unrepeatable(comparisons: Sequence[Comparison]) -> bool:
    """So few rows were compared under equal circumstances that "never" means nothing yet."""
    found = sightings(comparisons)
    same, rest = Count(), Count()
    for one in found:
        (rest if one.factors else same).add(one.differs)
    return not same.differing and same.rows * rest.rate < ENOUGH_EXPECTED


def bucket(clues: Clues) -> Diagnosis | None:
    """The same row of the same text has other bits in a longer prompt, and company is not to blame."""
    if not _accused(clues, Factor.LENGTH) or _accused(clues, Factor.COMPANY):
        return None
    summary = "a prompt's numbers depend on how long it is: longer ones take another kernel, bucket or padding"
    evidence = [(Factor.LENGTH.value, str(clues.table.pure(Factor.LENGTH)))]
    return Diagnosis(Kind.BUCKET, _confidence(clues, 1.0), summary, evidence)


def company(clues: Clues) -> Diagnosis | None:
    """Told apart by what the widths of the batches, the place in them and the cases say."""
    cached_too = clues.share(lambda one: Factor.CACHE in one.factors) >= EXPLAINS
    if clues.share(lambda one: Factor.COMPANY in one.factors) < EXPLAINS:
        return None
    if cached_too and not _accused(clues, Factor.COMPANY):
        return None
    in_company = [one for one in clues.found if _is_steady(one) and not one.meeting.first_setting.neighbours]
    known = [one for one in in_company if one.comparison.setting.case == "widths"]
    steady = known or in_company
    widths = _count_by(steady, lambda one: one.comparison.setting.neighbours + 1)
    evidence = [(f"width {width}", str(count)) for width, count in sorted(widths.items())]
    confidence = _confidence(clues, 1.0)
    if steady and not any(count.differing for count in widths.values()):
        uneven = Count()
        for one in in_company:
            if one.comparison.setting.case == "uneven":
                uneven.add(one.differs)
        if uneven.differing:
            evidence.append(("unequal lengths in one batch", str(uneven)))
            summary = "batches of equal lengths are right, of unequal ones not: what pads them to one length leaks"
            return Diagnosis(Kind.PADDING, confidence, summary, evidence)
        summary = "rows differ only while another request is prefilled or joins, not in steady batches"
        return Diagnosis(Kind.MIXED, confidence, summary, evidence)
    places = _count_by([one for one in steady if one.comparison.setting.neighbours >= 2], _place)
    if _only(places, "middle"):
        evidence += [(f"{place} of its batch", str(count)) for place, count in places.items()]
        return Diagnosis(Kind.PLACE, confidence, "only requests in the middle of a batch differ", evidence)
    if _are_powers_clean(widths):
        summary = "batches of 2, 4, 8 ... requests are right, all others differ: padding up to a power of two leaks"
        return Diagnosis(Kind.PADDING, confidence, summary, evidence)
    clean = [width for width, count in widths.items() if not count.differing]
    limit = f" (not up to {max(clean)})" if clean and max(clean) < min(set(widths) - set(clean)) else ""
    summary = f"a request's numbers depend on how many others are decoded with it{limit}"
    return Diagnosis(Kind.BATCH, confidence, summary, evidence)


def cached(clues: Clues) -> Diagnosis | None:
    """A prefix from the cache against a computed one: wrong content, or another order of the same sums."""
    if not _accused(clues, Factor.CACHE) or clues.table.pure(Factor.CACHE).rate < clues.table.pure(Factor.PHASE).rate:
        return None
    if clues.share(lambda one: Factor.CACHE in one.factors) < 0.5:
        return None
    largest = _largest(clues.differing)
    flipped = sum("ranking" in one.meeting.kinds for one in clues.differing) / len(clues.differing)
    evidence = [
        ("largest |d| of a logprob", f"{largest:.2e}"),
        ("rows with another top-k", f"{100 * flipped:.0f} %"),
        (Factor.CACHE.value, str(clues.table.pure(Factor.CACHE))),
    ]
    if largest > WRONG_CONTENT or flipped > 0.8:
        summary = "reused keys are not those of the prompt: the numbers are of another text"
        return Diagnosis(Kind.CACHE, _confidence(clues, 1.0), summary, evidence)
    summary = "a suffix computed after a cached prefix differs in the last bits: its step has another size"
    return Diagnosis(Kind.SHAPE, "medium", summary, evidence)


def phases(clues: Clues) -> Diagnosis | None:
    """Prefill against decode, or the end of a prompt against its inside."""
    share = clues.share(lambda one: bool({Factor.PHASE, Factor.END} & one.factors))
    accused = _accused(clues, Factor.PHASE) or _accused(clues, Factor.END)
    if share < 0.5 or not accused:
        return None
    differences = logprob_differences(clues.differing)
    rounded = sum(_is_rounding(from_bits(item.first[0]), from_bits(item.other[0])) for item in differences)
    evidence = [
        (Factor.PHASE.value, str(clues.table.pure(Factor.PHASE))),
        (Factor.END.value, str(clues.table.pure(Factor.END))),
        ("largest |d| of a logprob", f"{_largest(clues.differing):.2e}"),
        ("logprobs off by no more than a rounding of the logarithm", f"{rounded} of {len(differences)}"),
    ]
    if differences and rounded >= 0.99 * len(differences):
        summary = "prefill and decode agree up to a logarithm's rounding: log(softmax) in one, log_softmax in the other"
        return Diagnosis(Kind.LOG_SOFTMAX, _confidence(clues, 1.0), summary, evidence)
    summary = "the same position has other numbers when it is decoded than when it is prefilled"
    return Diagnosis(Kind.PHASE, _confidence(clues, 1.0), summary, evidence)


RULES: tuple[Callable[[Clues], Diagnosis | None], ...] = (
    servers,
    epochs,
    hang_ups,
    preemptions,
    unrepeatable,
    seeds,
    streams,
    routes,
    chunk_cuts,
    tiles,
    step_size,
    bucket,
    company,
    cached,
    phases,
)


def _one_case(clues: Clues, cases: Sequence[str], kind: Kind, summary: str) -> Diagnosis | None:
    """Nearly all that differs does so in these cases, whose event no other case has."""
    share = clues.share(lambda one: _is_of(one, cases))
    if share < EXPLAINS:
        return None
    here, elsewhere = Count(), Count()
    for one in clues.found:
        (here if _is_of(one, cases) else elsewhere).add(one.differs)
    if elsewhere.rows * here.rate < ENOUGH_EXPECTED:
        return None
    return Diagnosis(kind, _confidence(clues, share), summary, [("in all other cases", str(elsewhere))])


def _is_of(one: Sighting, cases: Sequence[str]) -> bool:
    """One of its sides; a wrong value may also be the one that was seen first."""
    return any(setting.case in cases for setting in one.sides)


def _one_factor(clues: Clues, factor: Factor, kind: Kind, summary: str) -> Diagnosis | None:
    share = clues.share(lambda one: factor in one.factors)
    if share < EXPLAINS or not _accused(clues, factor):
        return None
    return Diagnosis(kind, _confidence(clues, share), summary, [(factor.value, str(clues.table.pure(factor)))])


def _accused(clues: Clues, factor: Factor) -> bool:
    return clues.table.pure(factor).differing > 0


def _largest(differing: Sequence[Sighting]) -> float:
    return max(_distances(differing), default=0.0)


def _distances(differing: Sequence[Sighting]) -> list[float]:
    return [abs(from_bits(item.first[0]) - from_bits(item.other[0])) for item in logprob_differences(differing)]


def _is_rounding(first: float, other: float) -> bool:
    return abs(first - other) <= ROUNDING * max(1.0, abs(first))


def _cut_known(one: Sighting) -> bool:
    """Alone and prefilled on both sides: then the cuts follow from the cached prefix and the chunk size."""
    prefilled = one.meeting.phase != "decoded" or one.meeting.first_phase != "decoded"
    return prefilled and Factor.COMPANY not in one.factors


def _is_cut_of_one_side(one: Sighting, chunk: int | None) -> bool:
    if not chunk:
        return False
    computed = one.meeting.position - 1
    phases_of = (one.meeting.first_phase, one.meeting.phase)
    cuts = [
        phase != "decoded" and _is_cut(setting, computed, chunk)
        for phase, setting in zip(phases_of, one.sides, strict=True)
    ]
    return cuts[0] != cuts[1]


def _is_cut(setting: Setting, computed: int, chunk: int) -> bool:
    """The row is the first of a chunk, and not of the first one."""
    start = setting.cached_tokens or 0
    return computed > start and (computed - start) % chunk == 0


def _is_steady(one: Sighting) -> bool:
    """In the middle of an answer of a batch that was sent at once: neighbours neither start nor end here."""
    answer, setting = one.comparison.answer, one.comparison.setting
    index = one.meeting.position - len(answer.ask.ids)
    if setting.case in ("widths", "uneven"):
        return 2 <= index < len(answer.output) - 1
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
