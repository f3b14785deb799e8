"""Controlled re-runs: the suspected cause switched on with prompts never seen before, and off for the same prompts.

A cause that differs when on and never when off is confirmed; one that doesn't show again is said to be doubtful.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from zerokl.check.cases.abort_storm import abort_storm
from zerokl.check.cases.aborts import aborts
from zerokl.check.cases.arrivals import long_prefill, staggered
from zerokl.check.cases.branches import branches
from zerokl.check.cases.chunks import chunks
from zerokl.check.cases.continued import continued
from zerokl.check.cases.echo import echo
from zerokl.check.cases.lengths import lengths
from zerokl.check.cases.mixture import mixture
from zerokl.check.cases.pressure import pressure
from zerokl.check.cases.rescoring import rescoring
from zerokl.check.cases.sampled import sampled, samples
from zerokl.check.cases.stops import stops
from zerokl.check.cases.streams import streams
from zerokl.check.cases.sweep import sweep
from zerokl.check.cases.transplants import transplants
from zerokl.check.cases.twins import twins
from zerokl.check.cases.warm import warm_prefix
from zerokl.check.clues import Diagnosis, Kind
from zerokl.check.contrast import Count, sightings
from zerokl.check.lab import Lab
from zerokl.check.ledger import Comparison, Ledger
from zerokl.check.outcome import CouldNotRun
from zerokl.check.prompts import Prompts
from zerokl.check.tally import Tally
from zerokl.check.targets.base import Can

Experiment = Callable[[Lab], Awaitable[None]]
FRESH = 1_000_003
"""Added to the seed: other prompts than the run's."""
ROUNDS, ENOUGH = 4, 40
"""Rare differences need more rows before "never" means anything."""
JOINING = 8
PROMPTS_REPEATED, TIMES_REPEATED = 8, 5
WIDTHS = (2, 3, 4, 5, 6, 7, 8, 9, 12, 16)


async def widths(lab: Lab, first: int = 800) -> None:
    """Batches of 2 to 16 equally short requests: all of them decode in step from the second token on."""
    tried = [width for width in WIDTHS if width <= lab.widest]
    new_tokens = max(16, lab.sizes.new_tokens)
    asks = [lab.greedy(lab.prompts.prompt(3, first + n, "random"), new_tokens).unscored() for n in range(max(tried))]
    for ask in asks:
        await lab.reference(ask)
    for width in tried:
        await lab.flush()
        await lab.together(asks[:width], f"in a batch of {width}")


async def uneven(lab: Lab, first: int = 850) -> None:
    """Short prompts of unequal lengths in one batch: what pads them to one length has something to leak."""
    lengths = (3, 9, 5, 4, 6 * lab.page)[: lab.widest]
    new_tokens = max(16, lab.sizes.new_tokens)
    asks = [
        lab.greedy(lab.prompts.prompt(length, first + n, "random"), new_tokens).unscored()
        for n, length in enumerate(lengths)
    ]
    for ask in asks:
        await lab.reference(ask)
    await lab.flush()
    await lab.together(asks, f"in a batch of {len(asks)} prompts of unequal lengths")


async def ages(lab: Lab, first: int = 870) -> None:
    """Short prompts of one length that join one after the other: their ages differ, and nothing else."""
    asks = [
        lab.greedy(lab.prompts.prompt(3, first + n, "random"), 16).unscored() for n in range(min(JOINING, lab.widest))
    ]
    for ask in asks:
        await lab.reference(ask)
    await lab.flush()
    await staggered(lab, asks)


async def cache(lab: Lab) -> None:
    await warm_prefix(lab)
    if {Can.FLUSH, Can.CACHED_COUNT} <= lab.target.abilities:
        await branches(lab)
    if lab.can(Can.FLUSH):
        await transplants(lab)
        await twins(lab)


async def hang_ups(lab: Lab) -> None:
    await aborts(lab)
    if lab.can(Can.FLUSH):
        await abort_storm(lab)


async def seeds(lab: Lab) -> None:
    await sampled(lab)
    if lab.can(Can.SAMPLES):
        await samples(lab)


async def phase(lab: Lab) -> None:
    await (rescoring(lab) if lab.can(Can.PROMPT_LOGPROBS) else continued(lab))


ON: dict[Kind, Experiment] = {
    Kind.BATCH: widths,
    Kind.PADDING: widths,
    Kind.PLACE: widths,
    Kind.MIXED: long_prefill,
    Kind.SHAPE: widths,
    Kind.CACHE: cache,
    Kind.PHASE: phase,
    Kind.LOG_SOFTMAX: phase,
    Kind.CHUNK: chunks,
    Kind.TILE: lengths,
    Kind.BUCKET: sweep,
    Kind.SEED: seeds,
    Kind.SCALED: sampled,
    Kind.STOP: stops,
    Kind.TOP: mixture,
    Kind.WISHES: mixture,
    Kind.ABORT: hang_ups,
    Kind.PREEMPTION: pressure,
    Kind.STREAM: streams,
    Kind.ROUTE: echo,
}
NEED_WIDTHS = frozenset({Kind.BATCH, Kind.PADDING, Kind.PLACE, Kind.MIXED})
"""Kinds that only batches of known widths can tell apart."""


def fresh(lab: Lab, case: str) -> Lab:
    """The same server with other prompts and an empty ledger."""
    prompts = Prompts(lab.seed + FRESH, lab.prompts.corpus, lab.facts.largest_id or 255)
    sizes = replace(lab.sizes, long_tokens=min(64, lab.sizes.long_tokens))
    other = Lab(lab.target, lab.facts, prompts, sizes, seed=lab.seed + FRESH, ledger=Ledger())
    other.tally = Tally(case)
    other.on_answer = lab.on_answer
    return other


async def explore(lab: Lab) -> list[Comparison]:
    """Batches of known widths; if they are right, requests that join them; then unequal lengths."""
    trial, found = fresh(lab, "widths"), list[Comparison]()
    tried = [("widths", widths), *([("ages", ages)] if lab.can(Can.STREAM) else []), ("uneven", uneven)]
    for name, experiment in tried:
        trial.tally = Tally(name)
        try:
            for turn in range(ROUNDS):
                await experiment(trial, 2000 + 100 * turn)
                if _count(trial.tally.comparisons).differing >= ENOUGH:
                    break
        except CouldNotRun:
            break
        finally:
            found += trial.tally.comparisons
        if _count(trial.tally.comparisons).differing:
            break
    return found


async def repeat(lab: Lab) -> list[Comparison]:
    """The same requests again and again, alone and cold."""
    trial = fresh(lab, "repeat")
    try:
        for number in range(PROMPTS_REPEATED):
            ask = trial.greedy(lab.prompts.prompt(7 + number, 890 + number, "random"), max(16, lab.sizes.new_tokens))
            for turn in range(TIMES_REPEATED):
                await trial.cold(ask.unscored(), f"alone, cold ({turn + 1})")
    except CouldNotRun:
        pass
    return trial.tally.comparisons


async def confirm(lab: Lab, diagnosis: Diagnosis, where: Experiment | None = None) -> bool:
    """Adds two lines of evidence, and sets the confidence by them. False if the cause didn't show again, not even in
    the case `where` most of it was seen."""
    experiment = ON.get(diagnosis.kind)
    if experiment is None:
        return True
    trial = fresh(lab, "confirm")
    try:
        await experiment(trial)
        on = _count(trial.tally.comparisons)
        if where is not None and not on.differing:
            await where(trial)
            on = _count(trial.tally.comparisons)
        off = await _control(trial)
    except CouldNotRun as error:
        diagnosis.evidence.insert(0, ("re-run", f"could not run: {error}"))
        return True
    diagnosis.evidence[:0] = [("re-run with the cause", str(on)), ("re-run without it", str(off))]
    if on.differing and not off.differing:
        diagnosis.confidence = "high" if diagnosis.confidence != "low" else "medium"
        return True
    diagnosis.confidence = "low"
    return False


async def _control(trial: Lab) -> Count:
    """The same prompts again, alone and cold; where a cache can't be emptied they are warm, and compared among
    themselves."""
    trial.tally = Tally("control")
    rounds = 1
    if not trial.can(Can.FLUSH):
        trial.ledger, rounds = Ledger(), 2
    for _ in range(rounds):
        for ask in list(trial.references)[:6]:
            await trial.cold(ask, "the same again, alone, cold")
    return _count(trial.tally.comparisons)


def _count(comparisons: list[Comparison]) -> Count:
    count = Count()
    for one in sightings(comparisons):
        count.add(one.differs)
    return count
