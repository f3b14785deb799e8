"""The CPU runner: what it answers, what it refuses, what memory it takes."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from tests.models.memory import VOCABULARY, tiny_model
from tests.models.run import logits
from zerokl import ops
from zerokl.errors import EngineError
from zerokl.ops import reference
from zerokl.runner import CpuRunner
from zerokl.types import PENDING_TOKEN, LogprobSpec, PageId, RequestId, SamplingParams, Segment, StepPlan

GREEDY = SamplingParams(temperature=0.0)
SPECS = [None, LogprobSpec(), LogprobSpec(3), LogprobSpec(1, (4, 2))]


@cache
def model():
    return tiny_model(2)


def segment(number: int, length: int, **wishes) -> Segment:
    tokens = [(number * 37 + 11 * i) % VOCABULARY for i in range(length)]
    return Segment(RequestId(number), 0, tokens, [PageId(number)], **wishes)


def submit(*segments: Segment, **options):
    return CpuRunner(model(), 16, 16, fill=np.nan, **options).submit(StepPlan(3, segments)).result()


def test_an_empty_plan_has_an_empty_answer():
    assert submit().segments == ()


def test_a_segment_that_asks_for_nothing_is_answered_with_nothing():
    result = submit(segment(1, 5))
    assert result.step == 3
    assert result.segments[0].token is result.segments[0].logprobs is result.segments[0].scores is None


def test_no_logits_are_computed_for_rows_that_nobody_wants(monkeypatch):
    wanted = []
    linear = ops.linear

    def counting(x, weight, **options):
        if weight.shape[0] == VOCABULARY:
            wanted.append(len(x))
        return linear(x, weight, **options)

    monkeypatch.setattr(ops, "linear", counting)
    submit(
        segment(0, 9), segment(1, 7, sample=GREEDY), segment(2, 8, targets=[1, 2, 3], score_start=2, logprobs=SPECS[1])
    )
    assert wanted == [4]


@pytest.mark.parametrize("slice_rows", [None, 1, 2, 5])
def test_each_segment_gets_its_own_token_and_logprobs(slice_rows):
    """Mixed wishes in one step, against the reference run on each segment's logits."""
    segments = []
    for number in range(12):
        spec, length = SPECS[number % 4], 3 + number
        scored = {"targets": [5, 6], "score_start": number % 3, "logprobs": spec or SPECS[1]} if number % 3 else {}
        drawn = {"sample": GREEDY, "logprobs": scored.get("logprobs", spec)} if number % 2 else {}
        segments.append(segment(number, length, **(scored | drawn)))
    results = submit(*segments, slice_rows=slice_rows).segments
    for one, result in zip(segments, results, strict=True):
        rows = logits(model(), one.tokens, range(len(one.tokens)))
        if one.sample is None:
            assert result.token is None
        else:
            assert result.token == int(np.argmax(rows[-1]))
        if one.sample is None or one.logprobs is None:
            assert result.logprobs is None
        else:
            assert result.logprobs == reference.score(rows[-1:], np.array([result.token], np.int32), one.logprobs)
        if one.targets:
            first = one.score_start
            expected = reference.score(rows[first : first + 2], np.array(one.targets, np.int32), one.logprobs)
            assert result.scores == expected
        else:
            assert result.scores is None


def test_history_mask_and_position_reach_the_draw(monkeypatch):
    draws = []
    monkeypatch.setattr(ops, "sample", lambda logits, given: draws.extend(given) or np.zeros(len(given), np.int32))
    mask, history = bytes(36), ([1], [2])
    one = Segment(RequestId(0), 10, [1, 2], [PageId(0)], sample=GREEDY, history=history, mask=mask)
    submit(one)
    assert draws == [ops.Draw(GREEDY, 12, history, mask)]


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        ({"targets": [1, 2], "score_start": 2, "logprobs": LogprobSpec()}, r"targets for rows 2\.\.3 of 3"),
        ({"targets": [1], "score_start": -1, "logprobs": LogprobSpec()}, r"targets for rows -1\.\.-1 of 3"),
        ({"targets": [1]}, "logprobs None"),
    ],
)
def test_targets_that_make_no_sense_are_our_fault(wishes, message):
    with pytest.raises(EngineError, match=message):
        submit(segment(1, 3, **wishes))


def test_a_pending_token_is_refused_because_nothing_is_pending_here():
    with pytest.raises(EngineError, match="step 3 names a token that is still pending"):
        submit(Segment(RequestId(0), 4, [PENDING_TOKEN], [PageId(0)]))


@pytest.mark.parametrize("segment", [Segment(RequestId(0), 0, [VOCABULARY], [PageId(0)]), segment(16, 2)])
def test_a_token_or_page_that_does_not_exist_is_our_fault(segment):
    with pytest.raises(EngineError):
        submit(segment)
