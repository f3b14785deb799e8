"""Runners that need no weights. What they answer is a hash of all that a real model's answer depends on.

`FakeRunner` really keeps something in every slot of every page: the hash of what was attended to when it was written.
Reading goes through the segment's page table, as attention does, so a stale page, a match off by one, a slot never
filled or a wrong position changes every later token and logprob. `crowd.answer_alone` computes the same with no pages,
no batch and no scheduler.
"""

from __future__ import annotations

import math
import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from zerokl.types import (
    PENDING_TOKEN,
    Logprobs,
    LogprobSpec,
    Pending,
    RequestId,
    SamplingParams,
    Segment,
    SegmentResult,
    StepPlan,
    StepResult,
)

VOCABULARY = 13
"""Small, so that stop tokens come up and different histories often draw the same token."""

_MASK = 2**64 - 1
EMPTY = 0x9E3779B97F4A7C15


def mix(*values: int) -> int:
    """A 64-bit hash of integers, the same in every process."""
    state = EMPTY
    for value in values:
        state = ((state ^ (value & _MASK)) * 0xBF58476D1CE4E5B9) & _MASK
        state ^= state >> 29
    return state


# The "model": keys from what came before, logits from the keys


def key_of(context: int, token: int, position: int) -> int:
    """What is stored for a token: depends on everything before it, as the keys of any layer but the first do."""
    return mix(context, token, position)


def attend(context: int, key: int) -> int:
    """The context after one more key."""
    return mix(context, key)


def logprob(context: int, token: int) -> float:
    """An exact float32."""
    return -(mix(context, token) % 2**20) / 2**16


def logprobs_of(contexts: Sequence[int], tokens: Sequence[int], spec: LogprobSpec) -> Logprobs:
    """One row per context: of its own token, of the likeliest, and of the ids asked for."""
    chosen = [logprob(context, token) for context, token in zip(contexts, tokens, strict=True)]
    top: list[tuple[float, int]] = []
    for context in contexts:
        top += sorted((-logprob(context, token), token) for token in range(VOCABULARY))[: spec.num_top]
    ids = [logprob(context, token) for context in contexts for token in spec.ids]
    return Logprobs(
        rows=len(chosen),
        num_top=spec.num_top,
        num_ids=len(spec.ids),
        chosen=struct.pack(f"<{len(chosen)}f", *chosen),
        top_ids=struct.pack(f"<{len(top)}i", *(token for _, token in top)),
        top=struct.pack(f"<{len(top)}f", *(-value for value, _ in top)),
        ids=struct.pack(f"<{len(ids)}f", *ids),
    )


def draw(
    context: int,
    position: int,
    sampling: SamplingParams,
    history: tuple[Sequence[int], Sequence[int]] | None,
    mask: bytes | None,
) -> int:
    """The next token: greedy at temperature 0, else from (seed, stream, position); penalties see the history."""
    banned = {token for token, bias in sampling.logit_bias if bias == -math.inf}
    allowed = [token for token in range(VOCABULARY) if mask is None or mask[token // 8] >> token % 8 & 1]
    allowed = [token for token in allowed if token not in banned]
    noise = mix(sampling.seed, sampling.stream, position) if sampling.temperature else 0
    past = mix(*history[0], -7, *history[1]) if history else 0
    return max(allowed, key=lambda token: (mix(context, noise, past, token), -token))


# The runner


@dataclass
class FakeRunner:
    """A `StepRunner` over pages. With lag 1 a step runs as late as it may: when its result is asked for."""

    num_pages: int
    page_size: int
    lag: int = 0
    slots: list[int] = field(default_factory=list)
    drawn: dict[RequestId, int] = field(default_factory=dict)
    """The last token drawn for a request: what PENDING_TOKEN stands for in the next step."""
    plans: list[StepPlan] = field(default_factory=list)
    _queue: deque[FakePending] = field(default_factory=deque)

    def __post_init__(self) -> None:
        # A slot that was never written holds garbage of its own, like memory fresh from the device.
        self.slots = [mix(-1, slot) for slot in range(self.num_pages * self.page_size)]

    def submit(self, plan: StepPlan) -> Pending:
        check_plan(plan, self.page_size, self.num_pages)
        assert len(self._queue) <= self.lag, "more steps in flight than the lag allows"
        self.plans.append(plan)
        pending = FakePending(self, plan)
        self._queue.append(pending)
        return pending

    def run(self, plan: StepPlan) -> StepResult:
        assert self._queue.popleft().plan is plan, "results are asked for in the order of submission"
        tokens = [self._resolve(segment) for segment in plan.segments]
        # All writes before all reads, as one batched step does: a page that two segments share by mistake shows.
        contexts = [self._write(segment, ids) for segment, ids in zip(plan.segments, tokens, strict=True)]
        results = [
            self._answer(slot, segment, rows)
            for slot, (segment, rows) in enumerate(zip(plan.segments, contexts, strict=True))
        ]
        return StepResult(plan.step, tuple(results))

    def _resolve(self, segment: Segment) -> list[int]:
        return [self.drawn[segment.request_id] if id == PENDING_TOKEN else id for id in segment.tokens]

    def _write(self, segment: Segment, tokens: Sequence[int]) -> list[int]:
        """Stores the segment's keys and gives the context after each of its rows."""
        context = EMPTY
        for position in range(segment.start):
            context = attend(context, self.slots[self._slot(segment, position)])
        rows = []
        for position, token in enumerate(tokens, segment.start):
            self.slots[self._slot(segment, position)] = key_of(context, token, position)
            context = attend(context, self.slots[self._slot(segment, position)])
            rows.append(context)
        return rows

    def _slot(self, segment: Segment, position: int) -> int:
        return segment.pages[position // self.page_size] * self.page_size + position % self.page_size

    def _answer(self, batch_slot: int, segment: Segment, rows: Sequence[int]) -> SegmentResult:
        token = logprobs = scores = None
        if segment.sample:
            position = segment.start + len(segment.tokens)
            sampling = self.sampling_of(batch_slot, segment.sample)
            token = draw(rows[-1], position, sampling, segment.history, segment.mask)
            self.drawn[segment.request_id] = token
            logprobs = logprobs_of(rows[-1:], [token], segment.logprobs) if segment.logprobs else None
        if segment.targets:
            assert segment.logprobs is not None
            scored = rows[segment.score_start : segment.score_start + len(segment.targets)]
            scores = logprobs_of(scored, segment.targets, segment.logprobs)
        return SegmentResult(token, logprobs, scores)

    def sampling_of(self, batch_slot: int, sampling: SamplingParams) -> SamplingParams:
        """Where a planted defect seeds by batch slot."""
        return sampling


@dataclass(eq=False)
class FakePending:
    runner: FakeRunner
    plan: StepPlan

    def result(self) -> StepResult:
        return self.runner.run(self.plan)


def check_plan(plan: StepPlan, page_size: int, num_pages: int) -> None:
    """What `types.Segment` promises to any runner."""
    ids = [segment.request_id for segment in plan.segments]
    assert ids, "an empty plan"
    assert len(set(ids)) == len(ids), "a request twice in one step"
    written: set[int] = set()
    for segment in plan.segments:
        end = segment.start + len(segment.tokens)
        assert segment.tokens, "an empty segment"
        assert PENDING_TOKEN not in segment.tokens[:-1]
        assert len(segment.pages) * page_size >= end, "pages don't cover the segment"
        assert len(set(segment.pages)) == len(segment.pages)
        assert all(0 <= page < num_pages for page in segment.pages)
        assert segment.score_start + len(segment.targets) <= len(segment.tokens)
        assert PENDING_TOKEN not in segment.targets
        if segment.sample:
            assert segment.sample.needs_history == (segment.history is not None)
        pages = set(segment.pages[segment.start // page_size : -(-end // page_size)])
        assert not pages & written, "two requests write to one page in one step"
        written |= pages
