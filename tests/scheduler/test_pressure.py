"""Pages run out: who gives theirs back, and that nothing is told twice."""

from __future__ import annotations

from tests.crowd import answer_alone, fake_crowd
from tests.scheduler.shapes import LAGS, request, shapes
from zerokl.types import (
    LogprobSpec,
    RequestId,
)


@LAGS
def test_the_latest_arrival_is_preempted_and_the_first_never(lag):
    crowd = fake_crowd(lag=lag, num_pages=6, page_size=4, budget=64)
    requests = [request(id, 8, 13, logprobs=LogprobSpec(1), logprob_start=0) for id in range(3)]
    answers = crowd.serve(*requests)
    assert answers == [answer_alone(one, 64) for one in requests]
    assert crowd.scheduler.stats.counters.preemptions > 0
    starts = [start for step in shapes(crowd) for id, start, _ in step if id == 0]
    assert starts == sorted(set(starts)), "the first one never runs a token twice"


@LAGS
def test_scores_and_tokens_are_told_once_however_often_a_request_is_preempted(lag):
    crowd = fake_crowd(lag=lag, budget=4, page_size=64)
    asked = request(0, 17, 12, logprobs=LogprobSpec(1, (2,)), logprob_start=2)
    crowd.submit(asked)
    for steps in (2, 4, 6, 6, 7, 7):
        crowd.steps(steps)
        crowd.scheduler._preempt(crowd.scheduler._running[0])
        crowd.cache.check()
    assert crowd.finish_all()[RequestId(0)] == answer_alone(asked, 64)
    counters = crowd.scheduler.stats.counters
    assert counters.preemptions == 6
    assert counters.prefill_tokens > 4 * 17, "it was run again and again"
    assert (counters.scored_tokens, counters.sampled_tokens) == (14, 12)


@LAGS
def test_a_preempted_request_is_the_head_of_the_queue(lag):
    crowd = fake_crowd(lag=lag, num_pages=5, page_size=4, running=2, budget=64)
    crowd.serve(*[request(id, 8, 9) for id in range(4)])
    assert crowd.scheduler.stats.counters.preemptions > 0
    firsts = [id for step in shapes(crowd) for id, start, _ in step if start == 0]
    assert firsts[:2] == [0, 1]
    assert firsts.index(2) > max(index for index, id in enumerate(firsts) if id == 1)


@LAGS
def test_five_hundred_requests_on_a_tiny_pool_all_finish_as_alone(lag):
    crowd = fake_crowd(lag=lag, num_pages=12, page_size=2, budget=32, running=64, context_length=24)
    requests = [request(id, 1 + id % 7, 1 + id % 9, first=id % 5) for id in range(500)]
    assert crowd.serve(*requests) == [answer_alone(one, 24) for one in requests]
    counters = crowd.scheduler.stats.counters
    assert (counters.finished, counters.preemptions > 50) == (500, True)


def test_nothing_is_evicted_for_an_admission_that_fails():
    crowd = fake_crowd(num_pages=4, page_size=4)
    crowd.submit(request(0, 8, 5))
    crowd.steps(2)
    crowd.submit(request(1, 8, 5))
    before = crowd.cache.stats
    crowd.step()
    assert crowd.cache.stats.evicted == before.evicted
    assert crowd.cache.stats.lookups == before.lookups
    crowd.finish_all()
