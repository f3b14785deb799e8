"""Two files of results on the same questions, pair by pair: which outputs differ, who lost and won, and by how much."""

from __future__ import annotations

import math
from dataclasses import dataclass

from zerokl.errors import ConfigError
from zerokl.evals.results import Answered, Results
from zerokl.evals.statistics import McNemar, PairedMean, paired_mean


@dataclass(frozen=True, slots=True)
class Discordance:
    """An answer whose output differs, and where."""

    id: int
    what: str
    first: str
    other: str


@dataclass(frozen=True, slots=True)
class Comparison:
    pairs: int
    differing: tuple[Discordance, ...]
    """Of a reproducible server none, whatever the circumstances: compared by bits, without tolerance."""
    mcnemar: McNemar
    logprobs: PairedMean | None
    """Of sums per answer, second minus first; None where the tokens aren't the same or nothing was scored."""
    alone: int
    """Questions that only one file has."""


def compare(first: Results, other: Results) -> Comparison:
    """Raises ConfigError if the two didn't ask the same, or share no question."""
    if (first.head.task, first.head.settings) != (other.head.task, other.head.settings):
        raise ConfigError(f"not the same questions: {first.head.settings} and {other.head.settings}")
    ids = sorted(first.answers.keys() & other.answers.keys())
    if not ids:
        raise ConfigError("the two files share no question")
    pairs = [(first.answers[one], other.answers[one]) for one in ids]
    if changed := [one.id for one, two in pairs if one.prompt != two.prompt]:
        raise ConfigError(f"the prompts of questions {changed[:5]} differ")
    return Comparison(
        pairs=len(pairs),
        differing=tuple(found for one, two in pairs if (found := _discordance(one, two))),
        mcnemar=McNemar(
            lost=sum(one.verdict == "right" and two.verdict != "right" for one, two in pairs),
            won=sum(one.verdict != "right" and two.verdict == "right" for one, two in pairs),
        ),
        logprobs=_logprobs(pairs),
        alone=len(first.answers.keys() ^ other.answers.keys()),
    )


def _discordance(one: Answered, two: Answered) -> Discordance | None:
    """Tokens and logprobs are compared where both tell them; a float64 that holds a float32 compares its bits."""
    if one.ids is not None and two.ids is not None and one.ids != two.ids:
        at = _parts(one.ids, two.ids)
        return Discordance(one.id, f"tokens from {at} on", str(one.ids[at : at + 6]), str(two.ids[at : at + 6]))
    if one.text != two.text:
        at = _parts(one.text, two.text)
        return Discordance(one.id, f"text from character {at} on", one.text[at : at + 40], two.text[at : at + 40])
    if one.finish != two.finish:
        return Discordance(one.id, "how it ended", one.finish, two.finish)
    if one.logprobs is not None and two.logprobs is not None and one.logprobs != two.logprobs:
        at = _parts(one.logprobs, two.logprobs)
        return Discordance(
            one.id, f"logprobs from {at} on", repr(one.logprobs[at : at + 1]), repr(two.logprobs[at : at + 1])
        )
    return None


def _parts(one: object, two: object) -> int:
    """The first index where two sequences differ."""
    pairs = zip(one, two, strict=False)  # type: ignore[call-overload]  # strings or lists
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(two)))  # type: ignore[arg-type]


def _logprobs(pairs: list[tuple[Answered, Answered]]) -> PairedMean | None:
    scored = [
        (one, two)
        for one, two in pairs
        if one.logprobs and two.logprobs and one.ids == two.ids and one.text == two.text
    ]
    if len(scored) < 2 or len(scored) < len(pairs):
        return None
    return paired_mean([math.fsum(two.logprobs or ()) - math.fsum(one.logprobs or ()) for one, two in scored])
