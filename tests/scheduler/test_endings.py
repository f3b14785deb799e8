"""How a request ends, and what is free then."""

from __future__ import annotations

from tests.crowd import answer_alone, fake_crowd
from tests.fakes import VOCABULARY
from tests.scheduler.shapes import LAGS, request, shapes
from zerokl.types import (
    Finish,
    LogprobSpec,
    RequestId,
)


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
