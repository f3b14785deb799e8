"""Runners that need no weights. What they answer is a hash of all that a real model's answer depends on.

`FakeRunner` really keeps something in every slot of every page: the hash of what was attended to when it was written.
Reading goes through the segment's page table, as attention does, so a stale page, a match off by one, a slot never
filled or a wrong position changes every later token and logprob. `crowd.answer_alone` computes the same with no pages,
no batch and no scheduler.

With pools of more kinds it also has layers that see a window, a short convolution and a recurrent state, whose memory
is where the plan says, and nowhere else. What they make of a token goes into its key, so one wrong slot stays wrong.
"""

from __future__ import annotations

import math
import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from zerokl.types import (
    PENDING_TOKEN,
    ZERO_STATE,
    Copy,
    Logprobs,
    LogprobSpec,
    Pending,
    Pools,
    RequestId,
    SamplingParams,
    Segment,
    SegmentResult,
    StatePool,
    StepPlan,
    StepResult,
    WindowPool,
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


# The "hybrid model": what layers with a window, a convolution and a recurrent state make of a token

WIDTH = 4
"""Taps of the convolution."""


@dataclass
class Past:
    """What such layers remember before a position."""

    inputs: list[int]
    """The last WIDTH - 1 inputs of the convolution, 0 before the start."""
    windows: list[list[int]]
    """Per sliding kind: the keys of the window before the position, oldest first."""
    state: int = 0
    """At the last multiple of the chunk."""
    chunk: list[int] = field(default_factory=list)
    """What the recurrent layer was given since."""
    made: list[int] = field(default_factory=list)
    """Per sliding kind: the last token's own key."""


def nothing_past(pools: Pools) -> Past:
    return Past([0] * (WIDTH - 1), [[] for _ in pools.windows])


def advance(past: Past, pools: Pools, token: int, position: int) -> int:
    """Moves `past` on by one token and returns what those layers made of it."""
    given = mix(token, position)
    if pools.states:
        past.inputs.append(given)
        given = mix(*past.inputs)
        past.inputs.pop(0)
    past.made = []
    for kind, pool in enumerate(pools.windows):
        past.made.append(mix(given, kind))
        keys = [*past.windows[kind], past.made[kind]]
        given = mix(*keys)
        past.windows[kind] = keys[len(keys) - min(len(keys), pool.window - 1) :]
    if pools.states:
        past.chunk.append(given)
        given = mix(past.state, *past.chunk)
        if len(past.chunk) == pools.page_size:
            past.state, past.chunk = mix(past.state, -1, *past.chunk), []
    return given


def context_of(context: int, made: int, pools: Pools) -> int:
    """What a token's key depends on, its own token and position aside."""
    return mix(context, made) if pools.windows or pools.states else context


# The runner


@dataclass
class FakeState:
    """A state slot: a live one has all three, a checkpoint the first two."""

    inputs: list[int]
    state: int
    chunk: list[int]


@dataclass
class FakeRunner:
    """A `StepRunner` over pages. With lag 1 a step runs as late as it may: when its result is asked for."""

    num_pages: int
    page_size: int
    lag: int = 0
    windows: tuple[WindowPool, ...] = ()
    state_pool: StatePool | None = None
    host: Pools | None = None
    slots: list[int] = field(default_factory=list)
    drawn: dict[RequestId, int] = field(default_factory=dict)
    """The last token drawn for a request: what PENDING_TOKEN stands for in the next step."""
    plans: list[StepPlan] = field(default_factory=list)
    _queue: deque[FakePending] = field(default_factory=deque)

    def __post_init__(self) -> None:
        # A slot that was never written holds garbage of its own, like memory fresh from the device.
        self.slots = [mix(-1, slot) for slot in range(self.num_pages * self.page_size)]
        self.pools = Pools(self.num_pages, self.page_size, self.windows, self.state_pool)
        self.window_slots = [
            [mix(-2, kind, slot) for slot in range(pool.num_pages * self.page_size)]
            for kind, pool in enumerate(self.windows)
        ]
        num_states = self.state_pool.num_slots if self.state_pool else 0
        self.states = [FakeState([mix(-3, slot)] * (WIDTH - 1), mix(-4, slot), []) for slot in range(num_states)]
        self.host_places: dict[tuple[str, int, int], object] = {}
        """(kind, index, place) -> what was copied there."""

    def submit(self, plan: StepPlan) -> Pending:
        check_plan(plan, self.page_size, self.num_pages)
        check_states(plan, self.pools)
        assert len(self._queue) <= self.lag, "more steps in flight than the lag allows"
        self.plans.append(plan)
        pending = FakePending(self, plan)
        self._queue.append(pending)
        return pending

    def run(self, plan: StepPlan) -> StepResult:
        assert self._queue.popleft().plan is plan, "results are asked for in the order of submission"
        for copy in plan.copies:
            self.copy(copy)
        tokens = [self._resolve(segment) for segment in plan.segments]
        # All sources are read before anything is written.
        pasts = [self._past(segment) for segment in plan.segments]
        contexts = [
            self._write(segment, ids, past) for segment, ids, past in zip(plan.segments, tokens, pasts, strict=True)
        ]
        results = [
            self._answer(slot, segment, rows)
            for slot, (segment, rows) in enumerate(zip(plan.segments, contexts, strict=True))
        ]
        return StepResult(plan.step, tuple(results))

    def copy(self, copy: Copy) -> None:
        """One page or state, as it is now: later steps may write over where it came from."""
        if copy.kind == "state":
            place, slots, first, count = ("state", 0), self.states, 1, 1
        else:
            slots = self.window_slots[copy.index] if copy.kind == "sliding" else self.slots
            place, first, count = (copy.kind, copy.index), self.page_size, self.page_size
        host, device = (copy.target, copy.source) if copy.to_host else (copy.source, copy.target)
        here = slice(device * first, device * first + count)
        if copy.to_host:
            self.host_places[*place, host] = slots[here]
        else:
            slots[here] = self.host_places[*place, host]

    def _resolve(self, segment: Segment) -> list[int]:
        return [self.drawn[segment.request_id] if id == PENDING_TOKEN else id for id in segment.tokens]

    def _write(self, segment: Segment, tokens: Sequence[int], past: Past) -> list[int]:
        """Stores what the segment leaves behind, and gives the context after each of its rows."""
        context = EMPTY
        for position in range(segment.start):
            context = attend(context, self.slots[self._slot(segment, position)])
        rows = []
        checkpoints = dict(segment.state.checkpoints) if segment.state else {}
        for position, token in enumerate(tokens, segment.start):
            self._read_windows(segment, position, past)
            made = advance(past, self.pools, token, position)
            self._write_windows(segment, position, past)
            self.slots[self._slot(segment, position)] = key_of(context_of(context, made, self.pools), token, position)
            context = attend(context, self.slots[self._slot(segment, position)])
            rows.append(context)
            if position + 1 in checkpoints:
                self.write_state(checkpoints[position + 1], past)
        if segment.state:
            self.write_state(segment.state.live, past)
        return rows

    def _past(self, segment: Segment) -> Past:
        """What the segment starts from, read from where the plan says."""
        past, use = nothing_past(self.pools), segment.state
        if use and use.source != ZERO_STATE:
            found = self.read_state(use.source)
            past.inputs, past.state = list(found.inputs), found.state
            past.chunk = found.chunk[: segment.start % self.page_size]
        return past

    def read_state(self, slot: int) -> FakeState:
        return self.states[slot]

    def write_state(self, slot: int, past: Past) -> None:
        self.states[slot] = FakeState(list(past.inputs), past.state, list(past.chunk))

    def _read_windows(self, segment: Segment, position: int, past: Past) -> None:
        """The window's keys, through the page table: nothing is remembered from the row before."""
        for kind, pool in enumerate(self.windows):
            first = max(0, position - self.window_of(pool) + 1)
            past.windows[kind] = [self._window_key(segment, kind, seen) for seen in range(first, position)]

    def window_of(self, pool: WindowPool) -> int:
        """Where a planted defect sees one key more or less."""
        return pool.window

    def _window_key(self, segment: Segment, kind: int, position: int) -> int:
        place = self._window_place(segment, kind, position)
        return self.window_slots[kind][place] if place is not None else mix(-5, position)

    def _write_windows(self, segment: Segment, position: int, past: Past) -> None:
        for kind in range(len(self.windows)):
            place = self._window_place(segment, kind, position)
            assert place is not None, "no sliding page for a position that is written"
            self.window_slots[kind][place] = past.made[kind]

    def _window_place(self, segment: Segment, kind: int, position: int) -> int | None:
        pages, page = segment.windows[kind], position // self.page_size
        if not pages.first <= page < pages.first + len(pages.pages):
            return None
        return pages.pages[page - pages.first] * self.page_size + position % self.page_size

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


def check_states(plan: StepPlan, pools: Pools) -> None:
    """What `types.WindowPages` and `types.StateUse` promise to any runner, values aside."""
    uses = [segment.state for segment in plan.segments if segment.state]
    assert len(uses) == (len(plan.segments) if pools.states else 0)
    written = [slot for use in uses for slot in (use.live, *(slot for _, slot in use.checkpoints))]
    assert len(set(written)) == len(written), "one slot for two states"
    for kind, pool in enumerate(pools.windows):
        pages = [page for segment in plan.segments for page in written_pages(segment, kind, pools.page_size)]
        assert len(set(pages)) == len(pages), "two requests write to one sliding page in one step"
        assert all(0 <= page < pool.num_pages for page in pages)
    for segment, use in zip(plan.segments, uses, strict=False):
        assert pools.states
        end = segment.start + len(segment.tokens)
        assert (use.source == ZERO_STATE) == (segment.start == 0)
        assert use.source == use.live or use.source not in written, "a source is written in the same step"
        assert 0 <= use.live < pools.states.num_live
        assert all(slot in range(pools.states.num_live, pools.states.num_slots) for _, slot in use.checkpoints)
        assert all(segment.start < position <= end for position, _ in use.checkpoints)


def written_pages(segment: Segment, kind: int, page_size: int) -> Sequence[int]:
    """The sliding pages that hold the segment's own positions."""
    pages = segment.windows[kind]
    first, last = segment.start // page_size, (segment.start + len(segment.tokens) - 1) // page_size
    assert pages.first <= first, "the segment's own page is gone"
    assert last < pages.first + len(pages.pages), "sliding pages don't cover the segment"
    return pages.pages[first - pages.first : last + 1 - pages.first]
