"""Plan-independence with a host tier: pages and states that come and go between two memories, in the fake runner.

The fake copies what is in a place at that moment, in the order of the plan, so a copy too late, of another place, or
left out changes every later token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import Phase, given, settings
from msgspec.structs import replace

from tests import plans
from tests.bits.test_plans_hybrid import alone, continued, hybrid_events
from tests.crowd import answer_alone, assert_as_alone, fake_crowd
from tests.fakes import FakeRunner
from zerokl.cache import Cache
from zerokl.cache.host import HostShelf
from zerokl.errors import EngineError
from zerokl.types import Pools, Request, RequestId, StatePool, WindowPool

pytestmark = pytest.mark.slow


def run_any_plans(max_examples: int, **options) -> Counter[str]:
    """The property. Returns how often each event happened."""
    seen: Counter[str] = Counter()

    @settings(max_examples=max_examples, deadline=None, database=None, **options)
    @given(world=plans.host_worlds, requests=plans.requests(continued), script=plans.host_scripts)
    def any_plan_sequence_gives_the_same_bits(world, requests, script):
        crowd = plans.crowd_in(world, requests)
        cut_short = plans.play(crowd, requests, script)
        assert_as_alone(crowd.answers, requests, lambda request: alone(request, world), cut_short)
        seen.update(hybrid_events(crowd, world))
        for kind in crowd.cache.stats.host:
            for event in ("stored", "loaded", "dropped"):
                seen[f"{kind.kind} {event}"] += getattr(kind, event)

    any_plan_sequence_gives_the_same_bits()
    return seen


EVENTS = [f"{kind} {event}" for kind in ("full", "sliding", "state") for event in ("stored", "loaded", "dropped")]


def test_any_plan_sequence_gives_the_same_bits():
    seen = run_any_plans(150, derandomize=True)
    assert all(seen[event] for event in [*EVENTS, "preemptions", "aborted", "hits"]), f"an event never happened: {seen}"


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_any_plan_sequence_gives_the_same_bits_at_length():
    run_any_plans(20_000)


POOLS = Pools(30, 4, (WindowPool(6, 30),), StatePool(4, 4, 30))
HOST = replace(POOLS, host=plans.host_of(POOLS, 2))


def crowd_of(pools: Pools, lag: int = 0):
    return fake_crowd(
        lag=lag,
        num_pages=pools.num_pages,
        page_size=pools.page_size,
        windows=pools.windows,
        states=pools.states,
        host=pools.host,
    )


@pytest.mark.parametrize("lag", [0, 1])
def test_a_flushed_device_hits_as_before_from_the_host(lag):
    crowd = crowd_of(HOST, lag)
    asked = [Request(RequestId(id), [id, *range(20)], 6) for id in range(3)]
    crowd.serve(*asked)
    crowd.cache.flush_device()
    assert crowd.cache.stats.cached == 0
    again = [Request(RequestId(10 + id), [id, *range(20), 1], 6) for id in range(3)]
    crowd.serve(*again)
    assert_as_alone(crowd.answers, [*asked, *again], lambda request: answer_alone(request, 64, pools=POOLS))
    assert [crowd.answers[one.request_id].cached_tokens for one in again] == [20] * 3
    assert [kind.loaded for kind in crowd.cache.stats.host] == [15, 6, 3]


def test_a_second_round_trip_copies_nothing_to_the_host_again():
    crowd = crowd_of(HOST)
    crowd.serve(Request(RequestId(0), list(range(21)), 1))
    stored = []
    for id in range(1, 4):
        crowd.cache.flush_device()
        crowd.serve(Request(RequestId(id), list(range(21)), 1))
        stored.append([kind.stored for kind in crowd.cache.stats.host])
    assert stored == [stored[0]] * 3
    assert stored[0] == [5, 5, 5]


def test_an_abort_between_a_hit_and_its_copies_leaves_nothing_stale():
    crowd = crowd_of(HOST)
    crowd.serve(Request(RequestId(0), list(range(21)), 1))
    crowd.cache.flush_device()
    lease = crowd.cache.lease_with_room(list(range(21)), 20, num_tokens=21)
    assert lease is not None
    assert lease.cached_tokens == 20
    lease.release()  # the copies that it listed are carried by whatever runs next
    crowd.cache.check()
    second = Request(RequestId(1), list(range(22)), 3)
    assert_as_alone({1: crowd.serve(second)[0]}, [second], lambda request: answer_alone(request, 64, pools=POOLS))


def test_without_room_on_the_host_the_oldest_makes_way_and_a_flush_empties_both():
    crowd = crowd_of(replace(POOLS, host=Pools(6, 4, (WindowPool(6, 3),), StatePool(4, 0, 2))))
    for id in range(4):
        crowd.serve(Request(RequestId(id), [id, *range(16)], 1))
        crowd.cache.flush_device()
        crowd.cache.check()
    told = crowd.cache.stats.host
    assert [kind.size - kind.free for kind in told] == [6, 3, 2]
    assert told[0].dropped == 10
    assert crowd.cache.flush()
    crowd.cache.check()
    assert [kind.free for kind in crowd.cache.stats.host] == [6, 3, 2]
    assert crowd.serve(Request(RequestId(9), [3, *range(16)], 1))[0].cached_tokens == 0


# Planted defects: each turns the property red, by a token or by the runner's refusal; cache.check() is off


def copy_after_the_step(patch: pytest.MonkeyPatch) -> None:
    run, copy, late = FakeRunner.run, FakeRunner.copy, []

    def runs_first(runner: FakeRunner, plan):
        result = run(runner, plan)
        for one in late:
            copy(runner, one)
        late.clear()
        return result

    patch.setattr(FakeRunner, "copy", lambda runner, one: late.append(one))
    patch.setattr(FakeRunner, "run", runs_first)


def lose_one_kind(kind: str) -> Callable[[pytest.MonkeyPatch], None]:
    def lose(patch: pytest.MonkeyPatch) -> None:
        copy = FakeRunner.copy

        def without(runner: FakeRunner, one) -> None:
            if one.kind != kind or one.to_host:
                copy(runner, one)

        patch.setattr(FakeRunner, "copy", without)

    lose.__name__ = f"lose_{kind}_pages_on_the_way_back"
    return lose


def reuse_a_host_place_that_is_needed(patch: pytest.MonkeyPatch) -> None:
    keep = HostShelf.keep

    def careless(shelf: HostShelf, node, source) -> bool:
        kept = keep(shelf, node, source)
        if kept and not shelf._free:
            shelf._free.append(shelf.of(node))
        return kept

    patch.setattr(HostShelf, "keep", careless)


def list_copies_of_a_step_in_any_order(patch: pytest.MonkeyPatch) -> None:
    take = Cache.take_copies
    patch.setattr(Cache, "take_copies", lambda cache: take(cache)[::-1])


@pytest.mark.parametrize(
    "defect",
    [
        copy_after_the_step,
        lose_one_kind("full"),
        lose_one_kind("sliding"),
        lose_one_kind("state"),
        reuse_a_host_place_that_is_needed,
        list_copies_of_a_step_in_any_order,
    ],
    ids=lambda defect: defect.__name__,
)
def test_the_property_turns_red_on(defect: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Cache, "check", lambda cache: None)
    defect(monkeypatch)
    with pytest.raises((AssertionError, EngineError, KeyError), match=r"was told|(submit|run|result) failed"):
        run_any_plans(1000, derandomize=True, phases=[Phase.generate], report_multiple_bugs=False)
