"""The loop: lag, endings, counters, failures."""

from __future__ import annotations

import json

import pytest

from tests.crowd import Crowd, answer_alone, fake_crowd
from tests.fakes import FakeRunner
from zerokl.cache import Cache
from zerokl.engine.loop import Engine
from zerokl.errors import EngineError, NoRoom
from zerokl.scheduler import Limits, Scheduler
from zerokl.types import Finish, LogprobSpec, Request, RequestId, StepPlan

LAGS = pytest.mark.parametrize("lag", [0, 1])


def request(id: int, prompt_length: int = 4, max_new_tokens: int = 4, **options) -> Request:
    return Request(RequestId(id), [100 * id + offset for offset in range(prompt_length)], max_new_tokens, **options)


def stats(crowd: Crowd) -> dict:
    return crowd.engine.stats.as_dict()


def test_in_step_a_step_reports_itself():
    crowd = fake_crowd()
    crowd.submit(request(0, 4, 2))
    assert [[progress.token is not None for progress in crowd.step()] for _ in range(2)] == [[True], [True]]
    assert not crowd.engine.has_work


def test_one_step_behind_a_step_reports_the_one_before():
    crowd = fake_crowd(lag=1)
    crowd.submit(request(0, 4, 2))
    assert [len(crowd.step()) for _ in range(3)] == [0, 1, 1]
    assert not crowd.engine.has_work


def test_the_next_step_is_submitted_before_the_last_one_is_waited_for():
    """What lag is for: the device never waits for the plan."""
    order: list[str] = []

    class Watched(FakeRunner):
        def submit(self, plan: StepPlan):
            order.append(f"submit {plan.step}")
            return super().submit(plan)

        def run(self, plan: StepPlan):
            order.append(f"result {plan.step}")
            return super().run(plan)

    scheduler = Scheduler(Limits(context_length=64), Cache(8, 4), lag=1)
    crowd = Crowd(Engine(scheduler, Watched(8, 4, lag=1)))
    crowd.serve(request(0, 4, 3))
    assert order == ["submit 1", "submit 2", "result 1", "submit 3", "result 2", "result 3"]


def test_a_scheduler_and_a_runner_of_different_lag_are_refused():
    scheduler = Scheduler(Limits(context_length=64), Cache(8, 4), lag=0)
    with pytest.raises(ValueError, match="lag 0, the runner has 1"):
        Engine(scheduler, FakeRunner(8, 4, lag=1))


def test_a_step_with_nothing_to_do_does_nothing():
    crowd = fake_crowd()
    assert crowd.step() == []
    assert not crowd.engine.has_work
    assert crowd.runner.plans == []


@LAGS
def test_a_request_that_is_ended_before_it_ran_is_still_reported(lag):
    crowd = fake_crowd(lag=lag)
    id = crowd.submit(request(0))
    crowd.engine.abort(id, Finish("abort", message="the client went away", status_code=499))
    assert crowd.engine.has_work
    assert crowd.finish_all()[id].finish == Finish("abort", message="the client went away", status_code=499)
    assert crowd.runner.plans == []


@LAGS
def test_every_request_ends_in_exactly_one_finish(lag):
    """`Answer.take` refuses anything after the end."""
    crowd = fake_crowd(lag=lag, num_pages=12, running=3, budget=7)
    for id in range(12):
        crowd.submit(request(id, 1 + id, 6, stop_token_ids=frozenset([1, 2, 3])))
        crowd.step()
        if id % 3 == 2:
            crowd.engine.abort(RequestId(id - 1))
            crowd.engine.finish(RequestId(id), Finish("stop", matched="x"))
    kinds = [answer.finish.kind for answer in crowd.finish_all().values() if answer.finish]
    assert len(kinds) == 12
    assert {"abort", "stop"} <= set(kinds)
    assert stats(crowd)["finished"] == 12


def test_draining_takes_nothing_in_and_finishes_what_is_here():
    crowd = fake_crowd()
    crowd.submit(request(0))
    crowd.engine.drain()
    with pytest.raises(NoRoom) as refused:
        crowd.engine.submit(request(1))
    assert (refused.value.code, refused.value.status) == ("draining", 503)
    assert crowd.finish_all()[RequestId(0)] == answer_alone(request(0), 64)


@LAGS
def test_flush_is_refused_while_anything_runs_or_waits(lag):
    crowd = fake_crowd(lag=lag)
    crowd.submit(request(0))
    assert not crowd.engine.flush_cache()
    crowd.step()
    assert not crowd.engine.flush_cache()
    crowd.finish_all()
    assert crowd.engine.flush_cache()
    assert stats(crowd)["cache"]["free"] == 64


# Counters: what a checker asserts by


@LAGS
def test_batches_of_a_predicted_width_are_counted(lag):
    crowd = fake_crowd(lag=lag, budget=64)
    crowd.serve(request(0, 4, 3), request(1, 4, 5), request(2, 4, 5))
    assert stats(crowd)["decode_widths"] == {"3": 2, "2": 2}
    assert (stats(crowd)["max_batch_width"], stats(crowd)["last_batch_width"]) == (3, 2)
    assert stats(crowd)["decode_tokens"] == 10


@LAGS
def test_tokens_hits_and_chunks_of_a_predicted_number_are_counted(lag):
    crowd = fake_crowd(lag=lag, page_size=4, budget=5)
    crowd.serve(request(0, 12, 1))
    crowd.serve(request(0, 12, 2))
    now = stats(crowd)
    assert now["prefill_tokens"] == 12 + 4, "the second one finds two pages"
    assert (now["cached_tokens"], now["cache"]["hits"], now["cache"]["hit_tokens"]) == (8, 1, 8)
    assert now["chunked_prefills"] == 2
    assert now["sampled_tokens"] == 3
    assert now["steps"] == 3 + 2


def test_what_only_grows_only_grows():
    crowd = fake_crowd(num_pages=8, budget=9)
    for id in range(6):
        crowd.submit(request(id, 5, 9, logprobs=LogprobSpec(), logprob_start=0))
    now = ("running", "queued", "departing", "last_batch_width", "decode_widths", "draining", "cache")
    before = stats(crowd)
    while crowd.engine.has_work:
        crowd.step()
        after = stats(crowd)
        for name in after.keys() - set(now):
            assert after[name] >= before[name], name
        assert all(after["decode_widths"][width] >= count for width, count in before["decode_widths"].items())
        before = after
    assert before["preemptions"] > 0


def test_stats_are_json_and_a_snapshot():
    crowd = fake_crowd()
    before = crowd.engine.stats
    text = json.dumps(before.as_dict())
    crowd.serve(request(0))
    assert json.dumps(before.as_dict()) == text
    assert json.dumps(stats(crowd)) != text


def test_requests_and_pages_now_are_told():
    crowd = fake_crowd(running=1)
    crowd.submit(request(0, 4, 9))
    crowd.submit(request(1))
    crowd.step()
    now = stats(crowd)
    assert (now["running"], now["queued"]) == (1, 1)
    pages = now["cache"]
    assert pages["leased"] == 1
    assert pages["free"] + pages["cached"] + pages["leased"] == pages["num_pages"] == 64


# Failures: loud, with the plan, without the client's tokens


@pytest.mark.parametrize("where", ["submit", "run"])
@LAGS
def test_a_failing_runner_stops_the_engine_with_the_plan(lag, where, monkeypatch):
    def fail(runner, plan):
        raise RuntimeError("out of memory")

    crowd = fake_crowd(lag=lag)
    crowd.submit(request(7, 4, 2))
    monkeypatch.setattr(FakeRunner, where, fail)
    with pytest.raises(EngineError, match=rf"{where} failed: step 1: request 7 \[0, 4\)") as failure:
        crowd.steps(2)
    assert isinstance(failure.value.__cause__, RuntimeError)
    assert "702" not in str(failure.value), "a prompt doesn't belong in an error or a log"
