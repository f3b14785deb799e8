"""The policy, one rule a test. Plans are read directly; what the model would say doesn't matter here."""

from __future__ import annotations

import pytest

from tests.crowd import answer_alone, fake_crowd
from tests.fakes import VOCABULARY, FakeRunner, logprobs_of
from zerokl.errors import EngineError, InvalidRequest, NoRoom
from zerokl.types import (
    PENDING_TOKEN,
    Finish,
    LogprobSpec,
    Progress,
    Request,
    RequestId,
    SamplingParams,
    Segment,
    SegmentResult,
    StepPlan,
    StepResult,
)

LAGS = pytest.mark.parametrize("lag", [0, 1])


def request(id: int, prompt_length: int = 4, max_new_tokens: int = 4, first: int | None = None, **options) -> Request:
    """A prompt of its own, unless `first` says how it starts."""
    start = 100 * id if first is None else first
    return Request(RequestId(id), list(range(start, start + prompt_length)), max_new_tokens, **options)


def shape(plan: StepPlan | None) -> list[tuple[int, int, int]]:
    """(request, start, tokens) of each segment."""
    return [(s.request_id, s.start, len(s.tokens)) for s in plan.segments] if plan else []


def shapes(crowd) -> list[list[tuple[int, int, int]]]:
    return [shape(plan) for plan in crowd.runner.plans]


# Budget, order


def test_a_prompt_is_cut_by_the_budget_and_then_decodes_one_token_a_step():
    crowd = fake_crowd(budget=3)
    crowd.serve(request(0, 7, 3))
    assert shapes(crowd) == [[(0, 0, 3)], [(0, 3, 3)], [(0, 6, 1)], [(0, 7, 1)], [(0, 8, 1)]]


def test_several_prefills_share_a_step_in_order_of_arrival():
    crowd = fake_crowd(budget=10)
    crowd.serve(request(0, 4, 1), request(1, 4, 1), request(2, 4, 1))
    assert shapes(crowd) == [[(0, 0, 4), (1, 0, 4), (2, 0, 2)], [(2, 2, 2)]]


def test_decodes_come_first_and_prefills_get_what_they_leave():
    crowd = fake_crowd(budget=5)
    crowd.submit(request(0, 2, 5))
    crowd.submit(request(1, 2, 5))
    crowd.step()
    crowd.submit(request(2, 7, 1))
    crowd.finish_all()
    assert shapes(crowd)[1:4] == [
        [(0, 2, 1), (1, 2, 1), (2, 0, 3)],
        [(0, 3, 1), (1, 3, 1), (2, 3, 3)],
        [(0, 4, 1), (1, 4, 1), (2, 6, 1)],
    ]


def test_a_budget_smaller_than_the_decodes_serves_the_earliest_first_and_everyone_in_the_end():
    crowd = fake_crowd(budget=1)
    answers = crowd.serve(*[request(id, 2, 3) for id in range(3)])
    assert [len(answer.tokens) for answer in answers] == [3, 3, 3]
    assert all(len(step) == 1 for step in shapes(crowd))


def test_higher_priority_is_admitted_before_earlier_arrival():
    crowd = fake_crowd(budget=4, running=1)
    crowd.serve(request(0, 4, 1), request(1, 4, 1), request(2, 4, 1, priority=5))
    assert [step[0][0] for step in shapes(crowd)] == [2, 0, 1]


def test_a_waiting_request_of_higher_priority_prefills_before_a_running_one():
    crowd = fake_crowd(budget=4)
    crowd.submit(request(0, 8, 1))
    crowd.step()
    crowd.submit(request(1, 3, 1, priority=1))
    crowd.step()
    assert shapes(crowd)[1] == [(1, 0, 3), (0, 4, 1)]


def test_no_more_than_max_running_requests_are_in_a_step():
    crowd = fake_crowd(running=3, budget=64)
    crowd.serve(*[request(id, 2, 3) for id in range(8)])
    assert max(len(step) for step in shapes(crowd)) == 3
    assert crowd.scheduler.stats.counters.max_batch_width == 3


def test_the_same_arrivals_give_the_same_plans():
    def plans() -> list[StepPlan]:
        crowd = fake_crowd(num_pages=6, budget=5)
        crowd.serve(*[request(id, 5, 6, first=id % 2) for id in range(6)])
        return crowd.runner.plans

    assert plans() == plans()


# Submit


def test_a_prompt_longer_than_the_context_is_refused_with_both_numbers():
    with pytest.raises(InvalidRequest, match=r"65 tokens; 1 to 64"):
        fake_crowd(context_length=64).submit(request(0, 65))


def test_an_empty_prompt_is_refused():
    with pytest.raises(InvalidRequest, match="0 tokens"):
        fake_crowd().submit(request(0, 0))


def test_a_request_that_could_not_fit_alone_is_refused_with_both_numbers():
    crowd = fake_crowd(num_pages=3, page_size=4)
    crowd.serve(request(0, 8, 5))
    assert crowd.scheduler.stats.counters.preemptions == 0
    with pytest.raises(InvalidRequest, match=r"13 token slots \(4 cache pages\); the whole cache has 12 \(3 pages\)"):
        crowd.submit(request(1, 8, 6))


def test_a_full_queue_is_no_room_with_both_numbers():
    crowd = fake_crowd(running=1, queued=1)
    crowd.submit(request(0))
    crowd.submit(request(1))
    with pytest.raises(NoRoom, match=r"2 requests are running or queued; the limit is 2") as refused:
        crowd.engine.submit(request(2))
    assert refused.value.status == 429
    crowd.finish_all()
    crowd.submit(request(3))
    crowd.finish_all()
    counters = crowd.scheduler.stats.counters
    assert (counters.submitted, counters.refused, counters.finished) == (3, 1, 3)


def test_without_a_queue_what_can_run_now_is_still_taken():
    crowd = fake_crowd(running=2, queued=0)
    crowd.submit(request(0))
    crowd.submit(request(1))
    with pytest.raises(NoRoom):
        crowd.engine.submit(request(2))


def test_an_id_in_use_is_our_own_mistake():
    crowd = fake_crowd()
    crowd.submit(request(0))
    with pytest.raises(EngineError, match="request id 0 is in use"):
        crowd.engine.submit(request(0))


# Endings


def stops_at(tokens: list[int], index: int) -> frozenset[int]:
    return frozenset([tokens[index]])


@LAGS
def test_a_stop_id_ends_the_request_and_is_its_last_token(lag):
    free = answer_alone(request(0, 4, 12), 64)
    stop = next(token for token in free.tokens[2:] if token not in free.tokens[:2])
    (answer,) = fake_crowd(lag=lag).serve(request(0, 4, 12, stop_token_ids=frozenset([stop])))
    assert answer.tokens == free.tokens[: free.tokens.index(stop) + 1]
    assert answer.finish == Finish("stop", matched=stop)


@LAGS
def test_stop_ids_are_not_drawn_before_min_new_tokens(lag):
    stops = frozenset(range(0, VOCABULARY, 2))
    (answer,) = fake_crowd(lag=lag).serve(request(0, 4, 12, stop_token_ids=stops, min_new_tokens=5))
    assert len(answer.tokens) > 5
    assert not stops & set(answer.tokens[:5])
    assert answer == answer_alone(request(0, 4, 12, stop_token_ids=stops, min_new_tokens=5), 64)


@LAGS
def test_max_new_tokens_zero_scores_and_caches_the_whole_prompt(lag):
    crowd = fake_crowd(lag=lag, page_size=4)
    (answer,) = crowd.serve(request(0, 8, 0, logprobs=LogprobSpec(), logprob_start=0))
    assert (answer.tokens, answer.scores.rows, answer.finish) == ([], 7, Finish("length"))
    crowd.submit(request(1, 9, 1, first=0))
    assert crowd.finish_all()[RequestId(1)].cached_tokens == 8


@LAGS
def test_the_context_end_is_a_length_finish(lag):
    (answer,) = fake_crowd(lag=lag, context_length=10).serve(request(0, 7, 100))
    assert (len(answer.tokens), answer.finish) == (3, Finish("length"))


@LAGS
def test_the_last_token_by_length_is_never_run(lag):
    crowd = fake_crowd(lag=lag)
    crowd.serve(request(0, 4, 3))
    assert max(start + count for step in shapes(crowd) for _, start, count in step) == 6
    assert crowd.scheduler.stats.counters.dropped_tokens == 0


@LAGS
def test_an_abort_frees_everything_within_one_step(lag):
    crowd = fake_crowd(lag=lag, budget=4)
    for id in range(3):
        crowd.submit(request(id, 6, 6))
    crowd.steps(3)
    for id in range(3):
        assert crowd.engine.abort(RequestId(id))
    told = crowd.step()
    assert crowd.cache.stats.leased == 0
    assert [progress.request_id for progress in told] == [0, 1, 2]
    assert all(progress.finish and progress.finish.kind == "abort" for progress in told)
    assert not crowd.engine.has_work
    assert crowd.scheduler.stats.counters.aborted == 3


def test_pages_of_a_step_in_flight_are_kept_until_it_is_committed():
    crowd = fake_crowd(lag=1)
    crowd.submit(request(0, 6, 6))
    crowd.steps(2)
    crowd.engine.abort(RequestId(0))
    assert crowd.cache.stats.leased > 0, "a step in flight still names them"
    assert crowd.scheduler.stats.departing == 1
    crowd.step()
    assert crowd.cache.stats.leased == 0


def test_aborting_what_is_not_there_is_no_error():
    crowd = fake_crowd()
    assert not crowd.engine.abort(RequestId(7))
    crowd.serve(request(0))
    assert not crowd.engine.abort(RequestId(0))


@LAGS
def test_a_finish_from_the_text_side_is_told_once_and_ends_the_tokens(lag):
    crowd = fake_crowd(lag=lag)
    id = crowd.submit(request(0, 4, 50))
    while len(crowd.answers[id].tokens) < 3:
        crowd.step()
    assert crowd.engine.finish(id, Finish("stop", matched="###"))
    assert not crowd.engine.finish(id, Finish("stop", matched="other"))
    answer = crowd.finish_all()[id]
    assert (len(answer.tokens), answer.finish) == (3, Finish("stop", matched="###"))


# Scores


@LAGS
@pytest.mark.parametrize("start", range(10))
@pytest.mark.parametrize("budget", [1, 2, 3, 64])
def test_scores_are_of_the_tokens_after_the_start_however_the_prompt_is_cut(lag, start, budget):
    asked = request(0, 9, 2, logprobs=LogprobSpec(2, (3,)), logprob_start=start)
    (answer,) = fake_crowd(lag=lag, budget=budget).serve(asked)
    assert answer.scores.rows == max(8 - start, 0)
    assert answer == answer_alone(asked, 64)


def test_a_start_past_the_prompt_is_refused():
    with pytest.raises(InvalidRequest, match="logprob_start is 5; the prompt has 4 tokens"):
        fake_crowd().submit(request(0, 4, logprobs=LogprobSpec(), logprob_start=5))


@pytest.mark.parametrize("start", range(13))
def test_a_match_is_cut_to_where_scores_begin(start):
    crowd = fake_crowd(page_size=4)
    crowd.serve(request(0, 12, 1))
    asked = request(1, 12, 1, first=0, logprobs=LogprobSpec(), logprob_start=start)
    answer = crowd.serve(asked)[0]
    assert answer.cached_tokens == 4 * (min(11, start) // 4)
    assert answer == answer_alone(asked, 64)


def test_a_start_without_logprobs_asks_for_nothing():
    crowd = fake_crowd(page_size=4)
    crowd.serve(request(0, 12, 1))
    answer = crowd.serve(request(1, 12, 1, first=0, logprob_start=0))[0]
    assert (answer.cached_tokens, answer.scores.rows) == (8, 0)


# Hits


@LAGS
@pytest.mark.parametrize("page_size", [1, 64])
@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 127, 128, 129])
def test_a_second_turn_hits_all_full_pages_of_what_was_computed(lag, page_size, length):
    crowd = fake_crowd(lag=lag, page_size=page_size, num_pages=1024 // page_size, context_length=400, budget=50)
    (first,) = crowd.serve(request(0, length, 5))
    prompt = [*request(0, length).prompt, *first.tokens, 1]
    (second,) = crowd.serve(Request(RequestId(1), prompt, 1))
    assert second.cached_tokens == page_size * ((length + 5 - 1) // page_size)
    (same,) = crowd.serve(Request(RequestId(2), prompt, 1))
    assert same.cached_tokens == page_size * ((len(prompt) - 1) // page_size)


@LAGS
def test_what_is_cached_does_not_depend_on_the_lag_where_a_stop_ends_a_request(lag):
    stops = frozenset(range(VOCABULARY))
    crowd = fake_crowd(lag=lag, page_size=1)
    (first,) = crowd.serve(request(0, 4, 9, stop_token_ids=stops))
    assert crowd.scheduler.stats.counters.dropped_tokens == lag
    (second,) = crowd.serve(Request(RequestId(1), [*request(0, 4).prompt, *first.tokens, 1, 2, 3], 1))
    assert second.cached_tokens == 4, "the stop token was run with lag 1 only, and is not published"


def test_a_running_prompt_is_hit_by_another_before_it_ends():
    crowd = fake_crowd(page_size=4, budget=8)
    crowd.submit(request(0, 20, 30))
    crowd.steps(2)
    crowd.submit(request(1, 20, 1, first=0))
    crowd.steps(2)
    assert crowd.answers[RequestId(1)].finish
    assert crowd.answers[RequestId(1)].cached_tokens == 16


@LAGS
def test_equal_prompts_at_once_end_with_one_copy(lag):
    crowd = fake_crowd(lag=lag, page_size=4, budget=64)
    answers = crowd.serve(*[request(id, 13, 9, first=0, logprobs=LogprobSpec()) for id in range(3)])
    assert answers[0] == answers[1] == answers[2]
    assert crowd.cache.stats.merged > 0
    assert crowd.cache.stats.cached == 5, "13 prompt tokens and 8 outputs, once"


def test_use_cache_false_leaves_no_trace():
    crowd = fake_crowd(page_size=4)
    crowd.serve(request(0, 12, 1))
    before = crowd.cache.stats
    (answer,) = crowd.serve(request(1, 12, 5, first=0, use_cache=False))
    assert answer.cached_tokens == 0
    assert crowd.cache.stats == before


def test_salts_separate_requests():
    crowd = fake_crowd(page_size=4)
    cached = [
        crowd.serve(request(id, 12, 1, first=0, cache_salt=salt))[0].cached_tokens for id, salt in enumerate("aba")
    ]
    assert cached == [0, 0, 8]


# Pages run out


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
