"""Run a model on one sequence, the plain way."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from zerokl.models import Model
from zerokl.runner import CpuRunner
from zerokl.runner.batch import ragged_tokens
from zerokl.runner.kv import KvPools
from zerokl.types import PageId, RequestId, SamplingParams, Segment, StepPlan

PAGE_SIZE = 64
GREEDY = SamplingParams(temperature=0.0)


def logits(model: Model, tokens: Sequence[int], rows: Sequence[int]) -> np.ndarray:
    """[rows, V]: the whole sequence in one step."""
    pages = range(pages_of(len(tokens)))
    batch, ragged = ragged_tokens([Segment(RequestId(0), 0, tokens, [PageId(page) for page in pages])], PAGE_SIZE)
    hidden = model.forward(batch, ragged, KvPools(model, len(pages), PAGE_SIZE, fill=np.nan).layers(ragged))
    return model.logits(hidden[list(rows)])


def greedy(model: Model, prompts: Sequence[Sequence[int]], count: int) -> list[list[int]]:
    """The likeliest continuation of each prompt: prefills, then steps of one token each, all in one batch."""
    needed = [pages_of(len(prompt) + count) for prompt in prompts]
    pages = [range(last - count, last) for count, last in zip(needed, accumulate(needed), strict=True)]
    runner = CpuRunner(model, sum(needed), PAGE_SIZE, fill=np.nan)
    tokens = [list(prompt) for prompt in prompts]
    starts, found = [0] * len(prompts), [[] for _ in prompts]
    for step in range(count):
        segments = [
            Segment(RequestId(i), starts[i], tokens[i], [PageId(page) for page in pages[i]], sample=GREEDY)
            for i in range(len(prompts))
        ]
        for i, answer in enumerate(runner.submit(StepPlan(step, tuple(segments))).result().segments):
            starts[i] += len(tokens[i])
            tokens[i] = [answer.token]
            found[i].append(answer.token)
    return found


def pages_of(tokens: int) -> int:
    return -(-tokens // PAGE_SIZE)
