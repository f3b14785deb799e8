"""One step behind, and our own mistakes: loud."""

from __future__ import annotations

import pytest

from tests.crowd import answer_alone, fake_crowd
from tests.fakes import FakeRunner, logprobs_of
from tests.scheduler.shapes import LAGS, request
from zerokl.errors import EngineError
from zerokl.types import (
    PENDING_TOKEN,
    LogprobSpec,
    Progress,
    RequestId,
    SamplingParams,
    Segment,
    SegmentResult,
    StepPlan,
    StepResult,
)

# One step behind


def test_a_plan_names_the_token_in_flight_as_pending():
    crowd = fake_crowd(lag=1)
    crowd.serve(request(0, 4, 4))
    assert [segment.tokens[-1] for plan in crowd.runner.plans for segment in plan.segments][1:] == [PENDING_TOKEN] * 3


@pytest.mark.parametrize("lag", [0, 1])
def test_a_request_with_penalties_waits_for_its_last_token(lag):
    crowd = fake_crowd(lag=lag)
    asked = [
        request(0, 4, 5, sampling=SamplingParams(presence_penalty=0.5)),
        request(1, 4, 5, sampling=SamplingParams(temperature=0)),
    ]
    assert crowd.serve(*asked) == [answer_alone(one, 64) for one in asked]
    segments = [segment for plan in crowd.runner.plans for segment in plan.segments if segment.request_id == 0]
    assert all(PENDING_TOKEN not in segment.tokens for segment in segments)
    assert [len(segment.history[1]) for segment in segments if segment.history] == [0, 1, 2, 3, 4]


@LAGS
def test_a_grammar_sees_all_outputs_and_rules_the_next(lag):
    seen: list[list[int]] = []

    def only_one(outputs) -> bytes:
        seen.append(list(outputs))
        return (1 << len(outputs) + 3).to_bytes(2, "little")

    crowd = fake_crowd(lag=lag)
    id = crowd.submit(request(0, 4, 5), only_one)
    assert crowd.finish_all()[id].tokens == [3, 4, 5, 6, 7]
    assert seen == [[3, 4, 5, 6, 7][:count] for count in range(5)]


def test_a_lag_of_two_is_refused():
    with pytest.raises(ValueError, match="lag is 0 or 1, not 2"):
        fake_crowd(lag=2)


# Our own mistakes are loud


def test_a_result_of_another_step_raises():
    crowd = fake_crowd()
    crowd.submit(request(0))
    plan = crowd.scheduler.plan()
    assert plan
    with pytest.raises(EngineError, match="step"):
        crowd.scheduler.commit(StepResult(plan.step + 1, (SegmentResult(token=1),)))


@pytest.mark.parametrize(
    "result", [SegmentResult(), SegmentResult(token=1, scores=logprobs_of([1], [1], LogprobSpec()))]
)
def test_a_result_that_does_not_answer_its_segment_raises(result):
    crowd = fake_crowd()
    crowd.submit(request(0))
    plan = crowd.scheduler.plan()
    assert plan
    with pytest.raises(EngineError, match="don't answer the segment"):
        crowd.scheduler.commit(StepResult(plan.step, (result,)))


def test_planning_further_ahead_than_the_lag_raises():
    crowd = fake_crowd()
    crowd.submit(request(0))
    crowd.scheduler.plan()
    with pytest.raises(EngineError, match="1 steps are in flight; the lag is 0"):
        crowd.scheduler.plan()


def test_pages_that_nobody_gives_back_are_an_error_and_not_a_silent_wait():
    crowd = fake_crowd(num_pages=2, page_size=4)
    assert crowd.cache.lease([1], 0).reserve(8)
    crowd.submit(request(0))
    with pytest.raises(EngineError, match="no request can progress"):
        crowd.step()


def test_the_fake_runner_refuses_what_no_runner_could_run():
    def segment(**changes) -> Segment:
        return Segment(**{"request_id": RequestId(0), "start": 0, "tokens": [1, 2], "pages": [0]} | changes)

    runner = FakeRunner(2, 2)
    for bad in ({"pages": []}, {"tokens": [PENDING_TOKEN, 1]}, {"pages": [5]}, {"targets": (1, 2, 3)}, {"tokens": []}):
        with pytest.raises(AssertionError):
            runner.submit(StepPlan(1, (segment(**bad),)))
    with pytest.raises(AssertionError, match="two requests write"):
        runner.submit(StepPlan(1, (segment(), segment(request_id=RequestId(1)))))


def test_an_answer_told_more_after_its_end_is_noticed():
    crowd = fake_crowd()
    id = crowd.submit(request(0))
    ended = crowd.finish_all()[id]
    with pytest.raises(AssertionError, match="after the end"):
        ended.take(Progress(id, token=1))
