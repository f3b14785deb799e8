"""Plan-independence with layers that see a window, a convolution and a recurrent state: as `test_plans_fake.py`.

The fake runner keeps what such layers remember where the plan says. A window or a state that is wrong, late, not
zeroed or a neighbour's changes every later token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests import plans
from tests.bits.test_plans_fake import EVENTS as PLAIN_EVENTS
from tests.bits.test_plans_fake import events
from tests.crowd import Crowd, answer_alone, assert_as_alone, fake_crowd
from tests.fakes import FakeRunner, Past
from tests.plans import CONTEXT_LENGTH, World
from zerokl.cache import Cache
from zerokl.cache import match as match_module
from zerokl.cache.states import StateHold
from zerokl.cache.windows import WindowHold, WindowKind
from zerokl.errors import EngineError
from zerokl.types import ZERO_STATE, Pools, Request, SamplingParams, StatePool, StateSlot, StateUse, WindowPool

pytestmark = pytest.mark.slow


def alone(request: Request, world: World):
    return answer_alone(request, CONTEXT_LENGTH, pools=plans.pools_in(world, 1))


def continued(request: Request) -> list[int]:
    """Some tokens that may follow: no world's answer in particular."""
    free = replace(request, max_new_tokens=CONTEXT_LENGTH, stop_token_ids=frozenset())
    return answer_alone(free, CONTEXT_LENGTH).tokens


HYBRID_EVENTS = ["skipped", "state evicted", "sliding evicted", "state hits", "window hits"]
STOPS = ["limit", "full", "sliding", "state"]


def hybrid_events(crowd: Crowd, world: World) -> Counter[str]:
    stats = crowd.cache.stats
    seen = events(crowd) + Counter({f"stopped by {stop}": count for stop, count in stats.stopped.items()})
    seen["sliding evicted"] = sum(kind.evicted for kind in stats.windows)
    seen["window hits"] = stats.hits if world.windows else 0
    if stats.states:
        seen.update({"skipped": stats.states.skipped, "state evicted": stats.states.evicted, "state hits": stats.hits})
    return seen


def run_any_plans(max_examples: int, worlds: st.SearchStrategy[World] = plans.hybrid_worlds, **options) -> Counter[str]:
    """The property. Returns how often each event happened."""
    seen: Counter[str] = Counter()

    @settings(max_examples=max_examples, deadline=None, database=None, **options)
    @given(world=worlds, requests=plans.requests(continued), script=plans.hybrid_scripts)
    def any_plan_sequence_gives_the_same_bits(world, requests, script):
        crowd = plans.crowd_in(world, requests)
        cut_short = plans.play(crowd, requests, script)
        assert_as_alone(crowd.answers, requests, lambda request: alone(request, world), cut_short)
        seen.update(hybrid_events(crowd, world))

    any_plan_sequence_gives_the_same_bits()
    return seen


def test_any_plan_sequence_gives_the_same_bits():
    seen = run_any_plans(150, derandomize=True)
    expected = [*PLAIN_EVENTS, *HYBRID_EVENTS, *(f"stopped by {stop}" for stop in STOPS)]
    assert all(seen[event] for event in expected), f"an event never happened: {seen}"


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_any_plan_sequence_gives_the_same_bits_at_length():
    run_any_plans(20_000)


# Exact predictions


def prediction(seen: list[list[int]], tokens: list[int], limit: int, interval: int) -> int:
    """interval * floor(min(match, limit) / interval), the match being with what was run before."""
    match = max((common(tokens, one) for one in seen), default=0)
    return interval * (min(match, limit) // interval)


def common(one: list[int], other: list[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


plentiful_worlds = st.builds(
    World,
    lag=st.integers(0, 1),
    page_size=st.sampled_from([1, 2, 3, 4]),
    spare_tokens=st.just(4000),
    running=st.just(8),
    windows=st.sampled_from([(), (5,), (1,), (2, 8)]),
    spare_windows=st.just(1),
    interval_pages=st.sampled_from([0, 1, 2, 3]),
    checkpoints=st.just(1000),
    live=st.just(8),
)


@settings(max_examples=60, deadline=None, database=None, derandomize=True)
@given(world=plentiful_worlds, requests=plans.requests(continued), budget=st.integers(1, 12))
def test_without_pressure_a_hit_is_exactly_the_deepest_interval(world, requests, budget):
    crowd = plans.crowd_in(world, requests)
    crowd.scheduler.limits = replace(crowd.scheduler.limits, chunked_prefill_size=budget)
    interval = world.page_size * max(world.interval_pages, 1)
    run: dict[str, list[list[int]]] = {}
    for request in requests:
        answer = crowd.serve(request)[0]
        tokens = [*request.prompt, *answer.tokens]
        owes_scores = request.logprobs is not None and 0 <= request.logprob_start < len(request.prompt) - 1
        limit = min(len(request.prompt) - 1, request.logprob_start if owes_scores else len(request.prompt))
        seen = run.setdefault(request.cache_salt, []) if request.use_cache else []
        assert answer.cached_tokens == prediction(seen, request.prompt, limit, interval)
        seen.append(tokens[:-1] if answer.tokens else tokens)
    stats = crowd.cache.stats
    assert stats.lost_tokens < interval * (stats.lookups + 1)
    assert stats.stopped["sliding"] == stats.stopped["state"] == 0


@pytest.mark.parametrize("window", [511, 512, 513])
@pytest.mark.parametrize("tail", [0, 1, 63, 64, 65])
def test_a_second_turn_past_the_window_hits_every_page_but_the_last(window: int, tail: int):
    """Real sizes: a page of 64, keys of 512 tokens, four taps, and an answer that goes on past the window."""
    pools = Pools(64, 64, (WindowPool(window, 64),), StatePool(64, 2, 64))
    crowd = long_crowd(pools)
    first = Request(0, [token % 5 for token in range(300)], 400 + tail, SamplingParams(temperature=0))
    answer = crowd.serve(first)[0]
    second = Request(1, [*first.prompt, *answer.tokens, 1, 2, 3], 5, SamplingParams(temperature=0))
    assert_as_alone({1: crowd.serve(second)[0]}, [second], lambda one: answer_alone(one, 2000, pools=pools))
    assert crowd.answers[1].cached_tokens == 64 * ((300 + 400 + tail - 1) // 64)


def test_branches_at_every_offset_around_a_page_and_the_taps():
    pools = Pools(200, 16, (WindowPool(20, 200),), StatePool(16, 4, 200))
    crowd = long_crowd(pools)
    trunk = [token % 7 for token in range(120)]
    crowd.serve(Request(0, trunk, 1))
    branches = [Request(offset, [*trunk[:offset], 9, 9, 9, 9], 6) for offset in range(1, 120)]
    answers = crowd.serve(*branches)
    assert_as_alone(dict(enumerate(answers, 1)), branches, lambda one: answer_alone(one, 2000, pools=pools))
    assert [answer.cached_tokens for answer in answers] == [16 * (offset // 16) for offset in range(1, 120)]


def test_a_match_says_which_kind_stopped_it():
    """Five pages; a window's pages or checkpoints fall out, the oldest first, and the match goes by what is left."""

    def stopped(sliding: int, states: int) -> tuple[int, str]:
        crowd = long_crowd(Pools(40, 4, (WindowPool(6, 40),), StatePool(4, 2, 40)))
        crowd.serve(Request(0, list(range(20)), 1))
        shelves = crowd.cache.shelves
        for _ in range(sliding):
            shelves[0].evict_one()
        for _ in range(states):
            shelves[1].evict_one()
        lease = crowd.cache.lease([*range(20), 99], 20)
        found = lease.cached_tokens, lease.stopped_by
        lease.release()
        return found

    assert stopped(0, 0) == (20, "limit")
    assert stopped(3, 0) == (20, "limit"), "the last two pages are the window"
    assert stopped(4, 0) == (0, "sliding"), "page 5 lacks page 4, and the others lack themselves"
    assert stopped(0, 4) == (20, "limit")
    assert stopped(0, 5) == (0, "state")


def long_crowd(pools: Pools) -> Crowd:
    return fake_crowd(
        num_pages=pools.num_pages,
        page_size=pools.page_size,
        context_length=2000,
        budget=100,
        windows=pools.windows,
        states=pools.states,
    )


# Planted defects: each turns the property red, by a token or by the runner's refusal; cache.check() is off


def start_from_a_slot_that_was_not_zeroed(patch: pytest.MonkeyPatch) -> None:
    past = FakeRunner._past

    def stale(runner: FakeRunner, segment) -> Past:
        if segment.state and segment.state.source == ZERO_STATE:
            segment = replace(segment, state=replace(segment.state, source=segment.state.live))
        return past(runner, segment)

    patch.setattr(FakeRunner, "_past", stale)


def write_checkpoints_one_token_late(patch: pytest.MonkeyPatch) -> None:
    write = FakeRunner._write

    def late(runner: FakeRunner, segment, tokens, past):
        use, end = segment.state, segment.start + len(segment.tokens)
        if use:
            moved = tuple((min(position + 1, end), slot) for position, slot in use.checkpoints)
            segment = replace(segment, state=replace(use, checkpoints=moved))
        return write(runner, segment, tokens, past)

    patch.setattr(FakeRunner, "_write", late)


def take_checkpoints_at_the_end_of_the_segment(patch: pytest.MonkeyPatch) -> None:
    """Off the page boundary, as if the grid began at the segment's start."""
    write = FakeRunner._write

    def off(runner: FakeRunner, segment, tokens, past):
        use, end = segment.state, segment.start + len(segment.tokens)
        if use:
            moved = tuple((end, slot) for _, slot in use.checkpoints[-1:])
            segment = replace(segment, state=replace(use, checkpoints=moved))
        return write(runner, segment, tokens, past)

    patch.setattr(FakeRunner, "_write", off)


def store_the_state_of_the_neighbour(patch: pytest.MonkeyPatch) -> None:
    write = FakeRunner.write_state

    def neighbour(runner: FakeRunner, slot: int, past: Past) -> None:
        assert runner.state_pool
        is_checkpoint = slot >= runner.state_pool.num_live
        last = getattr(runner, "last_written", past)
        write(runner, slot, last if is_checkpoint else past)
        runner.last_written = past

    patch.setattr(FakeRunner, "write_state", neighbour)


def see_one_key_too_many(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FakeRunner, "window_of", lambda runner, pool: pool.window + 1)


def let_go_of_a_window_one_page_early(patch: pytest.MonkeyPatch) -> None:
    first_seen = WindowKind.first_seen
    patch.setattr(
        WindowKind, "first_seen", lambda kind, position: min(first_seen(kind, position) + 1, position // kind.page_size)
    )


def match_with_one_page_of_window_too_few(patch: pytest.MonkeyPatch) -> None:
    make = WindowKind.__init__

    def short(kind: WindowKind, pool: WindowPool, index: int, page_size: int) -> None:
        make(kind, pool, index, page_size)
        kind.span = max(0, kind.span - 1)

    patch.setattr(WindowKind, "__init__", short)


def match_without_asking_for_windows(patch: pytest.MonkeyPatch) -> None:
    missing = match_module._missing
    patch.setattr(
        match_module, "_missing", lambda pages, node, runs, windows, states: missing(pages, node, [], [], states)
    )


def match_without_asking_for_states(patch: pytest.MonkeyPatch) -> None:
    missing = match_module._missing
    patch.setattr(
        match_module, "_missing", lambda pages, node, runs, windows, states: missing(pages, node, runs, windows, None)
    )


def start_from_the_live_slot_after_a_hit(patch: pytest.MonkeyPatch) -> None:
    use = StateHold.use

    def live(hold: StateHold, start: int, end: int, keeps: bool) -> StateUse:
        found = use(hold, start, end, keeps)
        return found if found.source == ZERO_STATE else replace(found, source=found.live)

    patch.setattr(StateHold, "use", live)


def start_from_the_checkpoint_in_every_segment(patch: pytest.MonkeyPatch) -> None:
    use = StateHold.use
    first: dict[StateHold, StateSlot] = {}

    def again(hold: StateHold, start: int, end: int, keeps: bool) -> StateUse:
        found = use(hold, start, end, keeps)
        source = first.setdefault(hold, found.source)
        return found if ZERO_STATE in (source, found.source) else replace(found, source=source)

    patch.setattr(StateHold, "use", again)


def publish_the_last_checkpoint_at_every_page(patch: pytest.MonkeyPatch) -> None:
    publish = StateHold.publish
    patch.setattr(
        StateHold, "publish", lambda hold, position, node: publish(hold, max(hold.written, default=position), node)
    )


def free_a_live_slot_twice(patch: pytest.MonkeyPatch) -> None:
    release = StateHold.release

    def twice(hold: StateHold) -> None:
        release(hold)
        if len(hold._kind.free_live) < hold._kind.num_live:
            hold._kind.free_live.append(hold.live)

    patch.setattr(StateHold, "release", twice)


def free_a_sliding_page_that_its_node_keeps(patch: pytest.MonkeyPatch) -> None:
    publish = WindowHold.publish

    def keep(hold: WindowHold, index: int, node) -> None:
        publish(hold, index, node)
        hold._kind.shelf.give_back([hold._kind.shelf.of(node)])

    patch.setattr(WindowHold, "publish", keep)


def forget_which_sliding_page_a_merge_left(patch: pytest.MonkeyPatch) -> None:
    publish = WindowHold.publish

    def forget(hold: WindowHold, index: int, node) -> None:
        own = hold._pages[index - hold.first]
        publish(hold, index, node)
        hold._pages[index - hold.first] = own

    patch.setattr(WindowHold, "publish", forget)


DEFECTS = [
    start_from_a_slot_that_was_not_zeroed,
    write_checkpoints_one_token_late,
    take_checkpoints_at_the_end_of_the_segment,
    store_the_state_of_the_neighbour,
    see_one_key_too_many,
    let_go_of_a_window_one_page_early,
    match_with_one_page_of_window_too_few,
    match_without_asking_for_windows,
    match_without_asking_for_states,
    start_from_the_live_slot_after_a_hit,
    start_from_the_checkpoint_in_every_segment,
    publish_the_last_checkpoint_at_every_page,
    free_a_live_slot_twice,
    free_a_sliding_page_that_its_node_keeps,
    forget_which_sliding_page_a_merge_left,
]


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.__name__)
def test_the_property_turns_red_on(defect: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Cache, "check", lambda cache: None)
    defect(monkeypatch)
    with pytest.raises((AssertionError, EngineError), match=r"was told|leaked|submit failed|have none"):
        run_any_plans(1000, derandomize=True, phases=[Phase.generate], report_multiple_bugs=False)
