"""Which prompt tokens are scored, and how much of a prompt the cache spares."""

from __future__ import annotations

import pytest

from tests.crowd import answer_alone, fake_crowd
from tests.fakes import VOCABULARY
from tests.scheduler.shapes import LAGS, request
from zerokl.errors import InvalidRequest
from zerokl.types import (
    LogprobSpec,
    Request,
    RequestId,
)

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
