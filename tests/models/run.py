"""Run a model on one sequence, the plain way."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from zerokl.models import Model
from zerokl.models.memory import windows_of
from zerokl.runner import CpuRunner
from zerokl.runner.batch import ragged_tokens
from zerokl.types import (
    ZERO_STATE,
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

PAGE_SIZE = 64
GREEDY = SamplingParams(temperature=0.0)


def runner_of(model: Model, num_pages: int, sequences: int = 1, fill: float = np.nan) -> CpuRunner:
    """A runner with as many pages of each kind, and a live state per sequence."""
    windows = [WindowPool(window, num_pages) for window in windows_of(model.memory)]
    states = StatePool(PAGE_SIZE, sequences, 0) if any(layer.states for layer in model.memory) else None
    return CpuRunner(model, num_pages, PAGE_SIZE, windows=windows, states=states, fill=fill)


def segment_of(
    model: Model, number: int, start: int, tokens: Sequence[int], pages: Sequence[PageId], **wishes: Any
) -> Segment:
    """Some tokens of sequence `number`, whose pages have the same numbers in every kind."""
    live = StateSlot(number)
    return Segment(
        RequestId(number),
        start,
        tokens,
        pages,
        windows=tuple(WindowPages(0, pages) for _ in windows_of(model.memory)),
        state=StateUse(live if start else ZERO_STATE, live) if any(x.states for x in model.memory) else None,
        **wishes,
    )


def logits(model: Model, tokens: Sequence[int], rows: Sequence[int]) -> np.ndarray:
    """[rows, V]: the whole sequence in one step."""
    pages = [PageId(page) for page in range(pages_of(len(tokens)))]
    segments = [segment_of(model, 0, 0, tokens, pages)]
    batch, ragged = ragged_tokens(segments, PAGE_SIZE)
    hidden = model.forward(batch, ragged, runner_of(model, len(pages))._layers(segments, ragged))
    return model.logits(hidden[list(rows)])


def asked_logits(model: Model, tokens: Sequence[int], rows: Sequence[int]) -> np.ndarray:
    """The same as a runner does it: only the rows that are asked about go through what follows the last attention."""
    pages = [PageId(page) for page in range(pages_of(len(tokens)))]
    segments = [segment_of(model, 0, 0, tokens, pages)]
    batch, ragged = ragged_tokens(segments, PAGE_SIZE)
    parts = model.rows(batch, ragged, runner_of(model, len(pages))._layers(segments, ragged))
    return model.logits_of(*(part[list(rows)] for part in parts))


def greedy(model: Model, prompts: Sequence[Sequence[int]], count: int) -> list[list[int]]:
    """The likeliest continuation of each prompt: prefills, then steps of one token each, all in one batch."""
    needed = [pages_of(len(prompt) + count) for prompt in prompts]
    pages = [range(last - count, last) for count, last in zip(needed, accumulate(needed), strict=True)]
    runner = runner_of(model, sum(needed), len(prompts))
    tokens = [list(prompt) for prompt in prompts]
    starts, found = [0] * len(prompts), [[] for _ in prompts]
    for step in range(count):
        segments = [
            segment_of(model, i, starts[i], tokens[i], [PageId(page) for page in pages[i]], sample=GREEDY)
            for i in range(len(prompts))
        ]
        for i, answer in enumerate(runner.submit(StepPlan(step, tuple(segments))).result().segments):
            starts[i] += len(tokens[i])
            tokens[i] = [answer.token]
            found[i].append(answer.token)
    return found


def pages_of(tokens: int) -> int:
    return -(-tokens // PAGE_SIZE)
