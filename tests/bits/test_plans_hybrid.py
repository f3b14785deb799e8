"""Plan-independence with layers that see a window, a convolution and a recurrent state: as `test_plans_fake.py`.

The fake runner keeps what such layers remember where the plan says. A window or a state that is wrong, late, not
zeroed or a neighbour's changes every later token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests import plans
from tests.bits.test_plans_fake import EVENTS as PLAIN_EVENTS
from tests.bits.test_plans_fake import events
from tests.crowd import Crowd, answer_alone, assert_as_alone
from tests.fakes import FakeRunner, Past
from tests.plans import CONTEXT_LENGTH, World
from zerokl.cache import Cache, Lease
from zerokl.cache import match as match_module
from zerokl.cache import states as states_module
from zerokl.cache.shelf import Shelf
from zerokl.cache.states import StateHold
from zerokl.cache.windows import WindowHold, WindowKind
from zerokl.errors import EngineError
from zerokl.types import ZERO_STATE, Pools, Request, SamplingParams, StatePool, StateSlot, StateUse, WindowPool


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
