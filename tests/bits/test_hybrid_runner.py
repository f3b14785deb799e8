"""Every architecture in every way of cutting the work: chunks, neighbours, page numbers, windows whose passed pages are
gone, and sequences that go on from a checkpoint. Plans are drawn freely, also such as no scheduler makes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models.families import FAMILIES, family_model
from tests.models.variants import tokens
from zerokl.models import Model
from zerokl.models.memory import windows_of
from zerokl.runner import CpuRunner
from zerokl.types import (
    ZERO_STATE,
    Logprobs,
    LogprobSpec,
    PageId,
    RequestId,
    SamplingParams,
    Segment,
    StatePool,
    StateSlot,
    StateUse,
    StepPlan,
    WindowPages,
    WindowPool,
)

pytestmark = pytest.mark.slow

PAGE, LENGTHS = 16, (1, 15, 16, 17, 40, 90)
"""A page that divides no window of the families, and sequences below, at and beyond pages, windows and extents."""
SAMPLING, SPEC = SamplingParams(temperature=0.9, seed=3), LogprobSpec(2, (0, 283))

model_of = cache(family_model)


def story(family: str, length: int) -> list[int]:
    return tokens(length, model_of(family).vocab_size)


@cache
def alone(family: str, length: int) -> tuple[Logprobs, int]:
    """A sequence by itself, in one step: what every other way must equal."""
    way = Way(family, [length], 0)
    way.step({0: length})
    return way.sequences[0].scores, way.sequences[0].token


@dataclass
class Sequence:
    """One on its way: its pages in every kind, the states it has, and what it has said."""

    number: int
    length: int
    pages: list[PageId]
    done: int = 0
    scores: Logprobs = field(default_factory=Logprobs)
    token: int = -1
    checkpoint: tuple[int, Logprobs] | None = None
    """(position, scores up to there)"""
    turn: int = 0
    """Which of its two slots for checkpoints was written last."""


class Way:
    """A runner, the sequences in it, and two slots of checkpoints for each."""

    def __init__(self, family: str, lengths: list[int], seed: int) -> None:
        self.family, self.model, self.random = family, model_of(family), np.random.default_rng(seed)
        needed = [-(-length // PAGE) for length in lengths]
        free = self.random.permutation(sum(needed) + 2).tolist()
        self.sequences = [
            Sequence(i, length, [PageId(free.pop()) for _ in range(count)])
            for i, (length, count) in enumerate(zip(lengths, needed, strict=True))
        ]
        self.has_states = any(layer.states for layer in self.model.memory)
        self.runner = runner_of(self.model, sum(needed) + 2, len(lengths), self.has_states)
        self.number = 0

    def step(self, counts: dict[int, int]) -> None:
        """Some tokens of some sequences, in this order."""
        moving = [
            (self.sequences[i], min(count, self.sequences[i].length - self.sequences[i].done))
            for i, count in counts.items()
        ]
        moving = [(one, count) for one, count in moving if count]
        if not moving:
            return
        marks = [self.mark(one, count) for one, count in moving]
        segments = tuple(self.segment(one, count, mark) for (one, count), mark in zip(moving, marks, strict=True))
        results = self.runner.submit(StepPlan(self.number, segments)).result().segments
        for (one, count), mark, result in zip(moving, marks, results, strict=True):
            found = result.scores or Logprobs()
            if mark is not None:
                one.checkpoint = mark, one.scores.joined(first_rows(found, mark - one.done))
                one.turn = 1 - one.turn
            one.scores, one.done = one.scores.joined(found), one.done + count
            if result.token is not None:
                one.token = result.token
            self.forget_passed_pages(one)
        self.number += 1

    def mark(self, one: Sequence, count: int) -> int | None:
        """The last page boundary in these tokens, to keep a checkpoint at."""
        last = (one.done + count) // PAGE * PAGE
        return last if self.has_states and one.done < last < one.length else None

    def segment(self, one: Sequence, count: int, mark: int | None) -> Segment:
        text, stop = story(self.family, one.length), one.done + count
        live, first_kept = StateSlot(one.number), len(self.sequences) + 2 * one.number
        kept, free = StateSlot(first_kept + one.turn), StateSlot(first_kept + 1 - one.turn)
        checkpoints = () if mark is None else ((mark, free),)
        source = ZERO_STATE if one.done == 0 else live
        if one.checkpoint and one.done == one.checkpoint[0]:
            source = kept
        return Segment(
            RequestId(one.number),
            one.done,
            text[one.done : stop],
            one.pages,
            targets=text[one.done + 1 : stop + 1],
            sample=SAMPLING if stop == one.length else None,
            logprobs=SPEC,
            windows=tuple(self.seen(one, window) for window in windows_of(self.model.memory)),
            state=StateUse(source, live, checkpoints) if self.has_states else None,
        )

    def seen(self, one: Sequence, window: int) -> WindowPages:
        first = max(0, one.done - window + 1) // PAGE
        return WindowPages(first, one.pages[first:])

    def forget_passed_pages(self, one: Sequence) -> None:
        """What has passed out of a window is gone: NaN."""
        for keys, values, spec in zip(*self.pools(), strict=True):
            if spec.window is not None:
                for page in one.pages[: max(0, one.done - spec.window + 1) // PAGE]:
                    keys[page], values[page] = np.nan, np.nan

    def pools(self):
        pools = self.runner.pools
        return pools.keys, pools.values, pools.specs

    def resume(self, one: Sequence) -> None:
        """Back to the checkpoint, as after a preemption: the live state is lost, full keys after it are too."""
        if one.checkpoint is None or any(layer.keys and layer.keys.window for layer in self.model.memory):
            return
        one.done, one.scores = one.checkpoint
        for layer in self.runner.states.arrays:
            for arrays in layer:
                arrays.pool[one.number] = np.nan


def first_rows(scores: Logprobs, count: int) -> Logprobs:
    """The first `count` rows."""
    return Logprobs(
        count,
        scores.num_top,
        scores.num_ids,
        scores.chosen[: 4 * count],
        scores.top_ids[: 4 * count * scores.num_top],
        scores.top[: 4 * count * scores.num_top],
        scores.ids[: 4 * count * scores.num_ids],
    )


def runner_of(model: Model, num_pages: int, sequences: int, has_states: bool) -> CpuRunner:
    windows = [WindowPool(window, num_pages) for window in windows_of(model.memory)]
    states = StatePool(PAGE, sequences, 2 * sequences) if has_states else None
    return CpuRunner(model, num_pages, PAGE, windows=windows, states=states, fill=np.nan)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=12, deadline=None, database=None, derandomize=True)
@given(data=st.data())
def test_any_cut_placement_and_company_gives_the_same_bits(family, data):
    lengths = data.draw(st.lists(st.sampled_from(LENGTHS), min_size=1, max_size=4), "lengths")
    way = Way(family, lengths, data.draw(st.integers(0, 9), "places"))
    count = st.one_of(st.integers(1, 3), st.integers(1, 90))
    steps = st.lists(st.dictionaries(st.integers(0, len(lengths) - 1), count, min_size=1), max_size=8)
    for step in data.draw(steps, "steps"):
        way.step(step)
        if data.draw(st.integers(0, 3)) == 0:
            way.resume(way.sequences[0])
    for _ in range(2):
        way.step(dict.fromkeys(range(len(lengths)), max(LENGTHS)))
    for one in way.sequences:
        assert (one.scores, one.token) == alone(family, one.length), f"a sequence of {one.length} differs"


@pytest.mark.parametrize("family", FAMILIES)
def test_token_by_token_equals_one_step(family):
    way = Way(family, [40, 90], 1)
    for _ in range(90):
        way.step({1: 1, 0: 1})
    for one in way.sequences:
        assert (one.scores, one.token) == alone(family, one.length)
