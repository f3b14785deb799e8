"""Who runs when and how much, and who is let in. Plans are read directly."""

from __future__ import annotations

import pytest

from tests.crowd import fake_crowd
from tests.scheduler.shapes import request, shapes
from zerokl.errors import EngineError, InvalidRequest, NoRoom
from zerokl.types import (
    StepPlan,
)

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
