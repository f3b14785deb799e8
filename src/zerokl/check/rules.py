"""What kind of defect it is: one rule per pattern, tried on the rows that differ. A rule that doesn't fit says None.

The order matters (RULES): more specific patterns come first, since a chunk boundary also shows whenever a cache hit
moves the boundary.
"""

from __future__ import annotations

from collections.abc import Callable

from zerokl.check.batches import company
from zerokl.check.bits import from_bits
from zerokl.check.clues import (
    ENOUGH_EXPECTED,
    EXPLAINS,
    Clues,
    Diagnosis,
    Kind,
    accused,
    confidence,
    distances,
    largest,
    one_case,
    one_factor,
)
from zerokl.check.contrast import NOTHING, Count, Factor, Sighting, logprob_differences
from zerokl.check.ledger import Setting

WRONG_CONTENT = 0.5
"""A logprob that is off by more than this was computed from other numbers, not in another order: bfloat16 models move
by up to 0.1 when sums are taken in another order."""
ROUNDING = 4 * 2.0**-23
"""Times max(1, |logprob|): the error of taking log(softmax) instead of log_softmax."""


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
        [("nothing unequal", str(same)), ("anything unequal", str(rest)), *_since(clues)],
    )


def _since(clues: Clues) -> list[tuple[str, str]]:
    """Whether it began in the middle of the run."""
    start = min(one.comparison.setting.number for one in clues.differing)
    before = Count()
    for one in clues.found:
        if one.comparison.setting.number < start:
            before.add(one.differs)
    if before.rows < len(clues.found) / 10:
        return []
    return [(f"before answer #{start}", str(before))]


def seeds(clues: Clues) -> Diagnosis | None:
    """Other tokens were drawn from equal distributions; where even greedy ones were, it is no matter of noise."""
    drawn = [one for one in clues.differing if one.only_drawn]
    share = len(drawn) / len(clues.differing)
    if share < EXPLAINS:
        return None
    evidence = [("other token from an equal distribution", f"{len(drawn)} of {len(clues.differing)} differing rows")]
    if all(one.comparison.answer.ask.greedy for one in drawn):
        summary = "logprobs and rankings agree, but greedy requests don't take the likeliest token beside sampled ones"
        return Diagnosis(Kind.WISHES, confidence(clues, share), summary, evidence)
    summary = "logprobs and rankings agree, the drawn tokens don't: the noise depends on more than seed and position"
    return Diagnosis(Kind.SEED, confidence(clues, share), summary, evidence)


def temperatures(clues: Clues) -> Diagnosis | None:
    summary = "the same row has other logprobs at another temperature: they are taken after it, not before"
    return one_factor(clues, Factor.TEMPERATURE, Kind.SCALED, summary)


def tops(clues: Clues) -> Diagnosis | None:
    summary = "logprobs depend on how many of them are asked for"
    return one_factor(clues, Factor.TOP, Kind.TOP, summary)


def firsts(clues: Clues) -> Diagnosis | None:
    """Of requests under equal circumstances, those differ of which one was the first since the cache was emptied."""
    same, unequal = Count(), Count()
    for one in clues.found:
        if one.factors == NOTHING:
            first, other = one.sides
            (unequal if first.first != other.first else same).add(one.differs)
    if not unequal.differing or same.differing or same.rows * unequal.rate < ENOUGH_EXPECTED:
        return None
    evidence = [("one of them first after a flush", str(unequal)), ("both or neither", str(same))]
    summary = "whoever is first after a flush gets other numbers: memory that isn't cleared, or a start that isn't done"
    return Diagnosis(Kind.FIRST, "high" if unequal.differing >= 3 else "medium", summary, evidence)


def ends(clues: Clues) -> Diagnosis | None:
    """Tokens and logprobs agree as far as both answers go."""
    share = clues.share(lambda one: one.meeting.kinds == ["end"])
    if share < EXPLAINS:
        return None
    met = Count()
    for one in clues.found:
        if one.comparison.answer.ask.stop is not None and Factor.COMPANY in one.factors:
            met.add(one.differs)
    summary = "an answer doesn't always end at its stop: tokens after it are sent"
    return Diagnosis(Kind.STOP, confidence(clues, share), summary, [("answers with a stop, in company", str(met))])


def beginnings(clues: Clues) -> Diagnosis | None:
    summary = "requests with one beginning, computed at the same time, read keys that are not there yet"
    return one_case(clues, ("twins",), Kind.CACHE, summary)


def wishes(clues: Clues) -> Diagnosis | None:
    summary = "requests differ only beside others that ask for something else: scores, samples, another top"
    return one_case(clues, ("mixture",), Kind.WISHES, summary)


def servers(clues: Clues) -> Diagnosis | None:
    if clues.share(lambda one: Factor.SERVER in one.factors) < EXPLAINS:
        return None
    apart = sorted(distances(clues.differing))
    met = [one for one in clues.found if Factor.SERVER in one.factors]
    other_token = sum("token" in one.meeting.kinds for one in met)
    evidence = [
        ("largest |d| of a logprob", f"{apart[-1] if apart else 0:.2e}"),
        ("median |d| of those that differ", f"{apart[len(apart) // 2] if apart else 0:.2e}"),
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
    return Diagnosis(kind, confidence(clues, share), summary, [("all rows", str(rest))])


def hang_ups(clues: Clues) -> Diagnosis | None:
    summary = "requests differ only beside or after aborted ones: an abort gives back what others still use"
    return one_case(clues, ("aborts", "abort-storm"), Kind.ABORT, summary)


def preemptions(clues: Clues) -> Diagnosis | None:
    summary = "requests differ only where the cache is too small for all: what is computed again comes out otherwise"
    return one_case(clues, ("pressure",), Kind.PREEMPTION, summary)


def streams(clues: Clues) -> Diagnosis | None:
    return one_factor(clues, Factor.STREAM, Kind.STREAM, "a stream tells something else than the whole answer")


def routes(clues: Clues) -> Diagnosis | None:
    return one_factor(clues, Factor.ROUTE, Kind.ROUTE, "two routes give different numbers for one request")


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
        confidence(clues, len(at_cut) / len(rows)),
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
                confidence(clues, len(hits) / len(positions)),
                f"rows differ where the position is a multiple of {size}",
                [
                    (f"differing rows at multiples of {size}", f"{len(hits)} of {len(positions)}"),
                    (f"compared rows at multiples of {size}", f"{100 * usual:.0f} %"),
                ],
            )
    return None


def step_size(clues: Clues) -> Diagnosis | None:
    """Company, cache hits and decode all move the bits, a little: a step's sums depend on how many tokens it has."""
    guilty = [factor for factor in (Factor.COMPANY, Factor.CACHE, Factor.PHASE, Factor.END) if accused(clues, factor)]
    if len(guilty) < 2 or Factor.COMPANY not in guilty or largest(clues.differing) > WRONG_CONTENT:
        return None
    return Diagnosis(
        Kind.SHAPE,
        confidence(clues, 1.0),
        "company, cached prefixes or the phase move the bits alike: results depend on how many tokens share a step",
        [(factor.value, str(clues.table.pure(factor))) for factor in guilty],
    )


def bucket(clues: Clues) -> Diagnosis | None:
    """The same row of the same text has other bits in a longer prompt, and company is not to blame."""
    if not accused(clues, Factor.LENGTH) or accused(clues, Factor.COMPANY):
        return None
    summary = "a prompt's numbers depend on how long it is: longer ones take another kernel, bucket or padding"
    evidence = [(Factor.LENGTH.value, str(clues.table.pure(Factor.LENGTH)))]
    return Diagnosis(Kind.BUCKET, confidence(clues, 1.0), summary, evidence)


def cached(clues: Clues) -> Diagnosis | None:
    """A prefix from the cache against a computed one: wrong content, or another order of the same sums."""
    share = clues.share(lambda one: Factor.CACHE in one.factors)
    worst = largest(clues.differing)
    flipped = sum("ranking" in one.meeting.kinds for one in clues.differing) / len(clues.differing)
    wrong = worst > WRONG_CONTENT or flipped > 0.8
    only_here = wrong and share >= EXPLAINS  # too few to be seen with nothing else unequal
    if share < 0.5 or not (accused(clues, Factor.CACHE) or only_here):
        return None
    if clues.table.pure(Factor.CACHE).rate < clues.table.pure(Factor.PHASE).rate:
        return None
    lengths = sorted({one.comparison.setting.prompt_tokens for one in clues.differing})
    evidence = [
        ("largest |d| of a logprob", f"{worst:.2e}"),
        ("rows with another top-k", f"{100 * flipped:.0f} %"),
        (Factor.CACHE.value, str(clues.table.pure(Factor.CACHE))),
        ("lengths of the prompts", ", ".join(map(str, lengths[:8])) + (" ..." if len(lengths) > 8 else "")),
    ]
    if wrong:
        summary = "reused keys are not those of the prompt: the numbers are of another text"
        return Diagnosis(Kind.CACHE, confidence(clues, 1.0), summary, evidence)
    summary = "a suffix computed after a cached prefix differs in the last bits: its step has another size"
    return Diagnosis(Kind.SHAPE, "medium", summary, evidence)


def phases(clues: Clues) -> Diagnosis | None:
    """Prefill against decode, or the end of a prompt against its inside."""
    share = clues.share(lambda one: bool({Factor.PHASE, Factor.END} & one.factors))
    if share < 0.5 or not (accused(clues, Factor.PHASE) or accused(clues, Factor.END)):
        return None
    differences = logprob_differences(clues.differing)
    rounded = sum(_is_rounding(from_bits(item.first[0]), from_bits(item.other[0])) for item in differences)
    evidence = [
        (Factor.PHASE.value, str(clues.table.pure(Factor.PHASE))),
        (Factor.END.value, str(clues.table.pure(Factor.END))),
        ("largest |d| of a logprob", f"{largest(clues.differing):.2e}"),
        ("logprobs off by no more than a rounding of the logarithm", f"{rounded} of {len(differences)}"),
    ]
    if differences and rounded >= 0.99 * len(differences):
        summary = "prefill and decode agree up to a logarithm's rounding: log(softmax) in one, log_softmax in the other"
        return Diagnosis(Kind.LOG_SOFTMAX, confidence(clues, 1.0), summary, evidence)
    summary = "the same position has other numbers when it is decoded than when it is prefilled"
    return Diagnosis(Kind.PHASE, confidence(clues, 1.0), summary, evidence)


RULES: tuple[Callable[[Clues], Diagnosis | None], ...] = (
    servers,
    epochs,
    hang_ups,
    preemptions,
    beginnings,
    temperatures,
    tops,
    wishes,
    ends,
    firsts,
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
