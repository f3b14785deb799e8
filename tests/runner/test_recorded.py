"""Models on tapes: which have one, and that a tape moves no bit."""

from __future__ import annotations

import numpy as np
import pytest

from tests.models.families import family_model
from tests.models.memory import VOCABULARY, tiny_model
from zerokl import ops
from zerokl.models import Model
from zerokl.runner import CpuRunner
from zerokl.types import LogprobSpec, PageId, RequestId, SamplingParams, Segment, SegmentResult, StepPlan

GREEDY, SEEDED = SamplingParams(temperature=0.0), SamplingParams(temperature=0.9, seed=5)
ON_TAPES = ["qwen2", "qwen3"]
NOT_ON_TAPES = ["gemma3", "inkling", "mixtral"]


def answers(model: Model, on_tape: bool) -> list[tuple[SegmentResult, ...]]:
    """A prompt in two chunks beside a shorter one, then both decode, then one alone."""
    runner = CpuRunner(model, 20, 16, fill=np.nan)
    assert runner.recorded
    if not on_tape:
        runner.recorded = None
    tokens = [(7 * i + 3) % VOCABULARY for i in range(200)]
    pages = {1: [PageId(page) for page in (3, 9, 0, 17, 5)], 2: [PageId(page) for page in (11, 2, 13)]}

    def segment(number: int, start: int, count: int, **wishes) -> Segment:
        part = tokens[number * 50 + start :][:count]
        return Segment(RequestId(number), start, part, pages[number], **wishes)

    scored = {"targets": tokens[60:65], "score_start": 3, "logprobs": LogprobSpec(4, (1, 2))}
    steps = [
        (segment(1, 0, 40), segment(2, 0, 20, sample=GREEDY)),
        (segment(1, 40, 30, sample=SEEDED), segment(2, 20, 9, **scored)),
        (segment(1, 70, 1, sample=GREEDY, logprobs=LogprobSpec(2)), segment(2, 29, 1, sample=SEEDED)),
        (segment(2, 30, 1, sample=GREEDY),),
    ]
    return [runner.submit(StepPlan(number, step)).result().segments for number, step in enumerate(steps)]


@pytest.mark.parametrize("family", ["llama", *ON_TAPES])
def test_a_tape_gives_the_bits_of_the_operations_one_by_one(family):
    model = tiny_model(2) if family == "llama" else family_model(family)
    assert answers(model, on_tape=True) == answers(model, on_tape=False)


@pytest.mark.parametrize("family", NOT_ON_TAPES)
def test_a_model_that_does_more_has_no_tape(family):
    from tests.models.run import runner_of

    assert runner_of(family_model(family), 4).recorded is None


def test_a_model_that_computes_with_its_arrays_has_no_tape(monkeypatch):
    """So a defect that a test plants in an operation is run, not recorded away."""
    norm = ops.rms_norm
    monkeypatch.setattr(ops, "rms_norm", lambda x, weight, eps: 2 * norm(x, weight, eps))
    assert CpuRunner(tiny_model(2), 4, 16).recorded is None


def test_a_slot_outside_the_pool_is_refused_by_a_tape_too():
    runner = CpuRunner(tiny_model(2), 4, 16)
    with pytest.raises(Exception, match="slot 144 of a pool of 64"):
        runner.submit(StepPlan(0, (Segment(RequestId(1), 0, [1, 2], [PageId(9)]),)))
