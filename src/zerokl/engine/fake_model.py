"""The fake engine's model and runner: a hash instead of weights.

Keys and values are one 64-bit state per token slot, made from the state of the position before and the token. So
answers are plan-independent for the same reason as the real ones: what a step needs it reads from the pages. A stale
page shows, and prompts, prefixes and scores agree with each other.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zerokl.errors import EngineError
from zerokl.types import (
    PENDING_TOKEN,
    Logprobs,
    LogprobSpec,
    RequestId,
    SamplingParams,
    Segment,
    SegmentResult,
    StepPlan,
    StepResult,
)

MASK = (1 << 64) - 1
EMPTY_STATE = 0x9E3779B97F4A7C15
LIKELY = 8
"""A sampled token is one of this many likeliest."""


def next_state(state: int, token: int) -> int:
    """The state after one more token."""
    state = (state ^ (token + 1)) * 0xBF58476D1CE4E5B9 & MASK
    return state ^ (state >> 29)


def state_of(tokens: Sequence[int]) -> int:
    """The state after these tokens."""
    state = EMPTY_STATE
    for token in tokens:
        state = next_state(state, token)
    return state


@dataclass(frozen=True, slots=True)
class Scripted:
    """What the script says about one state: the token that follows, its logprob, how long the step takes."""

    token: int | None = None
    logprob: float | None = None
    step_s: float | None = None
    fails: bool = False


def read_script(entries: Sequence[Mapping[str, Any]]) -> dict[int, Scripted]:
    """By the state in which each line applies."""
    script: dict[int, Scripted] = {}
    for entry in entries:
        tokens, logprobs = entry.get("tokens", []), entry.get("logprobs", [])
        step_s = entry["step_ms"] / 1000 if "step_ms" in entry else None
        state = state_of(entry["prompt"])
        for index, token in enumerate(tokens):
            logprob = logprobs[index] if index < len(logprobs) else None
            script[state] = Scripted(token, logprob, step_s)
            state = next_state(state, token)
        if entry.get("fail", False):
            script[state] = Scripted(step_s=step_s, fails=True)
    return script


class FakeModel:
    """Logprobs as a function of the state: every id has a rank, and a logprob is a function of the rank.

    order    a turn of the alphabet, by the state ......... all other ids, by id        (a scripted token goes first)
    """

    def __init__(self, vocab: int, alphabet: Sequence[int], script: Mapping[int, Scripted] | None = None) -> None:
        self.script = script or {}
        self._alphabet = list(alphabet)
        likely = set(alphabet)
        self._order = [*alphabet, *(token for token in range(vocab) if token not in likely)]
        self._places = {token: place for place, token in enumerate(self._order)}

    def token_at(self, state: int, rank: int) -> int:
        """The id of this rank; 0 is the likeliest."""
        scripted = self.script.get(state, NOT_SCRIPTED).token
        if scripted is not None:
            if rank == 0:
                return scripted
            rank -= rank <= self._plain_rank(state, scripted)
        return self._plain_token(state, rank)

    def logprob(self, state: int, token: int) -> float:
        scripted = self.script.get(state, NOT_SCRIPTED)
        if token == scripted.token and scripted.logprob is not None:
            return scripted.logprob
        rank = self._plain_rank(state, token)
        if scripted.token is not None:
            top = self._plain_rank(state, scripted.token)
            rank = 0 if token == scripted.token else rank + (rank < top)
        return -(1 + (state & 0x3FF)) / 4096 - rank / 2  # exact in float32

    def row(self, state: int, token: int, spec: LogprobSpec) -> Logprobs:
        top = [self.token_at(state, rank) for rank in range(spec.num_top)]
        return Logprobs(
            1,
            spec.num_top,
            len(spec.ids),
            array("f", [self.logprob(state, token)]).tobytes(),
            array("i", top).tobytes(),
            array("f", [self.logprob(state, one) for one in top]).tobytes(),
            array("f", [self.logprob(state, one) for one in spec.ids]).tobytes(),
        )

    def draw(self, state: int, position: int, how: SamplingParams, mask: bytes | None = None) -> int:
        """The likeliest, or by seed one of the few likeliest; a bias and a mask count as they do for a real model."""
        if mask is not None:
            allowed = (token for token in self._places if mask[token // 8] >> token % 8 & 1)
            ranked = sorted(allowed, key=lambda token: (-self.logprob(state, token), token))
            certain = how.temperature == 0 or state in self.script
            turn = 0 if certain else state_of([how.seed & MASK, how.stream, position]) % LIKELY
            return ranked[turn % len(ranked)]
        if how.logit_bias:
            bias = dict(how.logit_bias)
            candidates = [*(self.token_at(state, rank) for rank in range(LIKELY)), *bias]
            return max(candidates, key=lambda token: (self.logprob(state, token) + bias.get(token, 0.0), -token))
        if how.temperature == 0 or state in self.script:
            return self.token_at(state, 0)
        return self.token_at(state, state_of([how.seed & MASK, how.stream, position]) % LIKELY)

    def _plain_rank(self, state: int, token: int) -> int:
        place, size = self._places[token], len(self._alphabet)
        return (place - state) % size if place < size else place

    def _plain_token(self, state: int, rank: int) -> int:
        size = len(self._alphabet)
        return self._alphabet[(rank + state) % size] if rank < size else self._order[rank]


NOT_SCRIPTED = Scripted()


class FakeRunner:
    """A `types.StepRunner` over `FakeModel`. Reads the past from its pages only, as a real one does."""

    def __init__(self, model: FakeModel, num_pages: int, page_size: int, *, lag: int = 0, step_s: float = 0.0) -> None:
        self.lag = lag
        self._model = model
        self._page_size = page_size
        self._states = [0] * (num_pages * page_size)
        self._step_s = step_s
        self._drawn: dict[RequestId, int] = {}

    def submit(self, plan: StepPlan) -> FakeStep:
        waits = [self._step_s]
        results = tuple(self._run(segment, waits) for segment in plan.segments)
        self._drawn = {
            segment.request_id: result.token
            for segment, result in zip(plan.segments, results, strict=True)
            if result.token is not None
        }
        if max(waits) > 0:
            time.sleep(max(waits))
        return FakeStep(StepResult(plan.step, results))

    def _run(self, segment: Segment, waits: list[float]) -> SegmentResult:
        model, spec = self._model, segment.logprobs or LogprobSpec()
        state = self._states[self._slot(segment, segment.start - 1)] if segment.start else EMPTY_STATE
        targets = dict(enumerate(segment.targets, segment.score_start))
        scores: list[Logprobs] = []
        for row, token in enumerate(segment.tokens):
            known = self._drawn[segment.request_id] if token == PENDING_TOKEN else token
            state = next_state(state, known)
            self._states[self._slot(segment, segment.start + row)] = state
            if row in targets:
                scores.append(model.row(state, targets[row], spec))
        scripted = model.script.get(state, NOT_SCRIPTED)
        if scripted.step_s is not None:
            waits.append(scripted.step_s)
        if scripted.fails:
            raise EngineError("the script says so")
        joined = sum_rows(scores)
        if segment.sample is None:
            return SegmentResult(scores=joined)
        token = model.draw(state, segment.start + len(segment.tokens), segment.sample, segment.mask)
        return SegmentResult(token, model.row(state, token, spec) if segment.logprobs else None, joined)

    def _slot(self, segment: Segment, position: int) -> int:
        page, offset = divmod(position, self._page_size)
        return segment.pages[page] * self._page_size + offset


@dataclass(frozen=True, slots=True)
class FakeStep:
    """A step that is done already."""

    outcome: StepResult

    def result(self) -> StepResult:
        return self.outcome


def sum_rows(rows: Sequence[Logprobs]) -> Logprobs | None:
    total = Logprobs()
    for row in rows:
        total = total.joined(row)
    return total if rows else None
