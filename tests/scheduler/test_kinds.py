"""Sliding windows and states in the schedule: who waits, who is cut, and where a request resumes."""

from __future__ import annotations

import pytest

from tests.crowd import Crowd, answer_alone, assert_as_alone, fake_crowd
from tests.scheduler.shapes import LAGS, request, shapes
from zerokl.cache import Cache
from zerokl.errors import ConfigError
from zerokl.types import ZERO_STATE, Pools, StatePool, WindowPool


def alone(crowd: Crowd):
    cache = crowd.cache
    windows = tuple(WindowPool(kind.window, 0) for kind in cache.window_kinds)
    states = StatePool(cache.page_size, 1, 0) if cache.state_kind else None
    pools = Pools(0, cache.page_size, windows, states)
    return lambda one: answer_alone(one, 64, pools=pools)


@LAGS
def test_a_prefill_is_cut_to_the_sliding_pages_there_are(lag):
    """A window of 8 and pages of 4: three pages are all that one request needs, so it runs four tokens at a time."""
    crowd = fake_crowd(lag=lag, budget=16, windows=(WindowPool(8, 3),))
    one = request(0, 30, 2)
    assert_as_alone({0: crowd.serve(one)[0]}, [one], alone(crowd))
    prefills = [count for step in shapes(crowd) for _, start, count in step if start < 30]
    assert max(prefills[1:]) <= 8
    assert sum(prefills) == 30


@LAGS
def test_requests_that_outgrow_the_sliding_pages_take_turns(lag):
    crowd = fake_crowd(lag=lag, windows=(WindowPool(8, 4),))
    asked = [request(id, 10, 20) for id in range(4)]
    crowd.serve(*asked)
    assert_as_alone(crowd.answers, asked, alone(crowd))


@LAGS
def test_no_more_requests_run_than_there_are_live_slots(lag):
    crowd = fake_crowd(lag=lag, states=StatePool(4, 2, 20))
    asked = [request(id, 6, 6) for id in range(5)]
    for one in asked:
        crowd.submit(one)
    widest = 0
    while crowd.engine.has_work:
        crowd.step()
        widest = max(widest, crowd.cache.stats.states.live_leased)
    assert widest == 2
    assert_as_alone(crowd.answers, asked, alone(crowd))


@LAGS
def test_a_preempted_request_resumes_from_its_last_checkpoint(lag):
    crowd = fake_crowd(lag=lag, budget=16, states=StatePool(8, 4, 20))
    crowd.submit(request(0, 30, 12))
    crowd.steps(6)
    before = len(crowd.runner.plans)
    (state,) = crowd.scheduler._running
    crowd.scheduler._preempt(state)
    crowd.finish_all()
    resumed = [
        s for plan in crowd.runner.plans[before:] for s in plan.segments if s.start % 8 == 0 and len(s.tokens) > 1
    ]
    assert [segment.start for segment in resumed] == [32]
    assert resumed[0].state.source >= 4, "a checkpoint, since live slots are 0 to 3"
    assert_as_alone(crowd.answers, [request(0, 30, 12)], alone(crowd))


def test_the_states_of_a_segment_are_where_the_plan_says():
    crowd = fake_crowd(budget=10, states=StatePool(4, 2, 20))
    crowd.serve(request(0, 14, 3))
    crowd.serve(request(1, 14, 1, first=0))
    uses = [segment.state for plan in crowd.runner.plans for segment in plan.segments]
    live = uses[0].live
    assert [use.source for use in uses[:4]] == [ZERO_STATE, live, live, live]
    assert [[position for position, _ in use.checkpoints] for use in uses] == [[4, 8], [12], [], [16], []]
    written = dict(slot for use in uses for slot in use.checkpoints)
    assert uses[4].source == written[12]


def test_a_pool_without_room_for_one_window_is_refused_at_the_start():
    with pytest.raises(ConfigError, match="a window of 8 tokens needs 3 pages of 4; the pool has 2"):
        Cache(10, 4, windows=[WindowPool(8, 2)])
    with pytest.raises(ConfigError, match="no state slot for a running request"):
        Cache(10, 4, states=StatePool(4, 0, 5))
    with pytest.raises(ValueError, match="a checkpoint interval of 6 isn't a multiple of the page, 4"):
        Cache(10, 4, states=StatePool(6, 1, 5))


def test_server_info_says_what_limited_the_matches():
    crowd = fake_crowd(windows=(WindowPool(6, 40),), states=StatePool(4, 4, 40))
    crowd.serve(request(0, 21, 1))
    while crowd.cache.shelves[1].evict_one():
        pass
    crowd.serve(request(1, 21, 1, first=0))
    told = crowd.engine.stats.as_dict()["cache"]
    assert told["stopped"] == {"limit": 0, "full": 1, "sliding": 0, "state": 1}
    assert told["lost_tokens"] == 20
    assert told["windows"][0]["window"] == 6
    assert (told["states"]["interval"], told["states"]["evicted"]) == (4, 5)
