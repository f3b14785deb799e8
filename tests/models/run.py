"""Run a model on one sequence, the plain way."""

from __future__ import annotations

from collections.abc import Sequence

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


def greedy(model: Model, prompt: Sequence[int], count: int) -> list[int]:
    """The likeliest continuation, a prefill and then one token per step."""
    pages = [PageId(page) for page in range(pages_of(len(prompt) + count))]
    runner = CpuRunner(model, len(pages), PAGE_SIZE, fill=np.nan)
    tokens, start, found = list(prompt), 0, []
    for step in range(count):
        segment = Segment(RequestId(0), start, tokens, pages, sample=GREEDY)
        token = runner.submit(StepPlan(step, (segment,))).result().segments[0].token
        start, tokens = start + len(tokens), [token]
        found.append(token)
    return found


def pages_of(tokens: int) -> int:
    return -(-tokens // PAGE_SIZE)
