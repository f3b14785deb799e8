"""Plan-independence of the policy side: any sequence of plans tells every request what it is told alone.

Each test also shows, by the counters, that what it is about has happened; and each planted defect turns it red.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import Phase, given, settings
from msgspec.structs import replace

from tests import plans
from tests.crowd import Crowd, answer_alone, assert_as_alone
from tests.fakes import FakeRunner
from tests.plans import CONTEXT_LENGTH
from zerokl.cache import Cache, Lease
from zerokl.cache.tree import PrefixTree
from zerokl.scheduler import Scheduler
from zerokl.scheduler.state import RequestState
from zerokl.types import LogprobSpec, Request

EVENTS = [
    *("preemptions", "chunked_prefills", "mixed_steps", "dropped_tokens", "cached_tokens", "scored_tokens", "aborted"),
    *("hits", "evicted", "merged"),
]


def alone(request: Request):
    return answer_alone(request, CONTEXT_LENGTH)


def continued(request: Request) -> list[int]:
    """Its tokens if nothing stopped it."""
    return alone(replace(request, max_new_tokens=CONTEXT_LENGTH, stop_token_ids=frozenset())).tokens


def events(crowd: Crowd) -> Counter[str]:
    stats = crowd.engine.stats.as_dict()
    return Counter({name: stats.get(name, 0) + stats["cache"].get(name, 0) for name in EVENTS})


def run_any_plans(max_examples: int, **options) -> Counter[str]:
    """The property. Returns how often each event happened."""
    seen: Counter[str] = Counter()

    @settings(max_examples=max_examples, deadline=None, database=None, **options)
    @given(world=plans.worlds, requests=plans.requests(continued), script=plans.scripts)
    def any_plan_sequence_gives_the_same_bits(world, requests, script):
        crowd = plans.crowd_in(world, requests)
        cut_short = plans.play(crowd, requests, script)
        assert_as_alone(crowd.answers, requests, alone, cut_short)
        seen.update(events(crowd))

    any_plan_sequence_gives_the_same_bits()
    return seen


def test_any_plan_sequence_gives_the_same_bits():
    seen = run_any_plans(120, derandomize=True)
    assert all(seen[event] for event in EVENTS), f"an event never happened: {seen}"


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_any_plan_sequence_gives_the_same_bits_at_length():
    run_any_plans(20_000)


@pytest.mark.parametrize("page_size", [1, 4, 64])
def test_one_step_behind_gives_the_same_answers_as_in_step(page_size):
    """The same requests, with pages to spare, so that hits are the same too."""

    def answers(lag: int):
        crowd = plans.crowd_in(plans.World(lag, page_size, 400, 8), requests)
        first = crowd.serve(*requests)
        again = [replace(one, request_id=one.request_id + 100) for one in requests]
        second = crowd.serve(*again)
        return first, second, [answer.cached_tokens for answer in second], crowd.cache.stats.cached

    requests = [Request(id, [1, 0, 1, 1, id % 2] * 3, 9, stop_token_ids=frozenset([3, 5])) for id in range(5)]
    assert answers(0) == answers(1)


@pytest.mark.parametrize("page_size", [1, 2, 4])
def test_tokens_drawn_past_a_stop_are_never_hit(page_size):
    """A second turn goes on exactly where a stopped request had run ahead, at every offset in a page."""
    dropped, hits, expected = 0, [], []
    for length in range(1, 9):
        crowd = plans.crowd_in(plans.World(1, page_size, 400, 8), [Request(0, [0], 1)])
        stopped = Request(1, [1] * length, 9, stop_token_ids=frozenset([2, 3, 5, 7, 11]))
        answer = crowd.serve(stopped)[0]
        dropped += crowd.engine.stats.scheduler.counters.dropped_tokens
        ahead = continued(stopped)[: len(answer.tokens) + 2]
        follow_up = Request(2, [*stopped.prompt, *ahead, 1], 3, logprobs=LogprobSpec())
        assert_as_alone({2: crowd.serve(follow_up)[-1]}, [follow_up], alone)
        hits.append(crowd.answers[2].cached_tokens)
        expected.append(page_size * ((length + len(answer.tokens) - 1) // page_size))
    assert hits == expected
    assert dropped > 4, "nothing was ever drawn past a stop"


# Planted defects: each turns the property red without any help from cache.check()


def reuse_a_page_that_is_still_in_the_tree(patch: pytest.MonkeyPatch) -> None:
    release = Lease.release

    def stale(lease: Lease) -> None:
        release(lease)
        page = lease.path[-1].page if lease.path else None
        if page is not None and page not in lease._cache._free:
            lease._cache._free.append(page)

    patch.setattr(Lease, "release", stale)


def match_one_page_too_many(patch: pytest.MonkeyPatch) -> None:
    match = PrefixTree.match

    def longer(tree: PrefixTree, salt, tokens, limit):
        path = match(tree, salt, tokens, limit)
        if path and path[-1].children and (len(path) + 1) * tree.page_size <= limit:
            path.append(next(iter(path[-1].children.values())))
        return path

    patch.setattr(PrefixTree, "match", longer)


def leak_the_lease_of_an_aborted_request(patch: pytest.MonkeyPatch) -> None:
    give_back = RequestState.give_back

    def leak(state: RequestState) -> None:
        if state.finish and state.finish.kind == "abort":
            state.lease = None
        give_back(state)

    patch.setattr(RequestState, "give_back", leak)


def seed_by_batch_slot(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        FakeRunner, "sampling_of", lambda runner, slot, sampling: replace(sampling, seed=sampling.seed + slot)
    )


def publish_a_dropped_token(patch: pytest.MonkeyPatch) -> None:
    """As if the token drawn past a stop were known and run: a slot that nobody wrote joins the tree."""
    commit = Scheduler._commit_segment

    def publish(scheduler: Scheduler, one, result):
        state = one.state
        if state.finish and state.lease and result.token is not None:
            tokens = [*state.tokens, result.token]
            if state.lease.reserve(len(tokens)):
                state.lease.computed(tokens, len(tokens))
        return commit(scheduler, one, result)

    patch.setattr(Scheduler, "_commit_segment", publish)


def publish_one_token_early(patch: pytest.MonkeyPatch) -> None:
    computed = Lease.computed

    def early(lease: Lease, tokens, count):
        room = len(lease.pages) * lease._cache.page_size
        computed(lease, tokens, min(count + 1, len(tokens), room))

    patch.setattr(Lease, "computed", early)


def repeat_the_scores_of_a_preempted_request(patch: pytest.MonkeyPatch) -> None:
    give_back = RequestState.give_back

    def forget(state: RequestState) -> None:
        give_back(state)
        if state.request.logprobs and state.request.logprob_start >= 0:
            state.planned_row = state.request.logprob_start

    patch.setattr(RequestState, "give_back", forget)


def reuse_a_prefix_whose_scores_are_owed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RequestState, "match_limit", property(lambda state: len(state.tokens) - 1))


def forget_the_last_token_of_the_history(patch: pytest.MonkeyPatch) -> None:
    outputs = RequestState._outputs
    patch.setattr(RequestState, "_outputs", lambda state: outputs(state)[:-1])


def plan_ahead_of_a_penalised_token(patch: pytest.MonkeyPatch) -> None:
    ahead = property(lambda state: state.num_outputs + state.pending < state.max_outputs)
    patch.setattr(RequestState, "_may_run_ahead", ahead)


def resume_without_the_outputs(patch: pytest.MonkeyPatch) -> None:
    give_back = RequestState.give_back

    def forget(state: RequestState) -> None:
        give_back(state)
        del state.tokens[state.prompt_length :]

    patch.setattr(RequestState, "give_back", forget)


def merge_into_the_wrong_page(patch: pytest.MonkeyPatch) -> None:
    publish = Lease._publish

    def wrong(lease: Lease, index: int, key: bytes) -> None:
        merged, pages = lease._cache._merged, lease.pages
        publish(lease, index, key)
        if lease._cache._merged > merged and index:
            lease.pages = (*lease.pages[: index - 1], lease.pages[index], pages[index - 1], *lease.pages[index + 1 :])

    patch.setattr(Lease, "_publish", wrong)


@pytest.mark.parametrize(
    "defect",
    [
        reuse_a_page_that_is_still_in_the_tree,
        match_one_page_too_many,
        leak_the_lease_of_an_aborted_request,
        seed_by_batch_slot,
        publish_one_token_early,
        repeat_the_scores_of_a_preempted_request,
        reuse_a_prefix_whose_scores_are_owed,
        forget_the_last_token_of_the_history,
        plan_ahead_of_a_penalised_token,
        resume_without_the_outputs,
        merge_into_the_wrong_page,
    ],
    ids=lambda defect: defect.__name__,
)
def test_the_property_turns_red_on(defect: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Cache, "check", lambda cache: None)
    defect(monkeypatch)
    with pytest.raises(AssertionError, match=r"was told|told something after the end|pages leaked"):
        run_any_plans(1000, derandomize=True, phases=[Phase.generate], report_multiple_bugs=False)


@pytest.mark.parametrize("page_size", [1, 2, 4])
def test_publishing_a_dropped_token_turns_it_red(page_size: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Cache, "check", lambda cache: None)
    publish_a_dropped_token(monkeypatch)
    with pytest.raises(AssertionError, match="was told"):
        test_tokens_drawn_past_a_stop_are_never_hit(page_size)
