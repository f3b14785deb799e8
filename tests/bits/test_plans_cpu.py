"""Plan-independence of the whole engine with real numbers: the plans of `test_plans_fake.py`, run by the CPU's kernels.

Whatever policy does (cut, mix, preempt, evict, reuse a prefix, drop a token), each request is told, to the bit, what it
is told alone, uncached, in one prefill. The model has 8 ids, so that prompts collide and stop tokens are drawn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from msgspec.structs import replace

from tests import plans
from tests.bits import test_plans_fake as fake
from tests.crowd import Answer, Crowd, assert_as_alone
from tests.models.memory import tiny_model
from tests.plans import CONTEXT_LENGTH, World
from zerokl.cache import Cache
from zerokl.engine.loop import Engine
from zerokl.errors import EngineError
from zerokl.runner import CpuRunner
from zerokl.scheduler import Limits, Scheduler
from zerokl.types import Request


@cache
def model():
    return tiny_model(9, vocab_size=8, num_hidden_layers=2, tie_word_embeddings=False)


def crowd(world: World, num_tokens: int, enabled: bool = True, budget: int = 16) -> Crowd:
    """An engine over the CPU runner, whose free pages hold NaN."""
    num_pages = -(-num_tokens // world.page_size)
    limits = Limits(
        context_length=CONTEXT_LENGTH,
        max_running_requests=world.running,
        max_queued_requests=1000,
        chunked_prefill_size=budget,
    )
    runner = CpuRunner(model(), num_pages, world.page_size, fill=np.nan)
    return Crowd(Engine(Scheduler(limits, Cache(num_pages, world.page_size, enabled), runner.lag), runner))


ALONE: dict[str, Answer] = {}


def alone(request: Request) -> Answer:
    """Its answer in an engine of its own: no cache, one prefill, one page."""
    key = repr(replace(request, request_id=0))
    if key not in ALONE:
        world = World(lag=0, page_size=64, spare_tokens=0, running=1)
        (ALONE[key],) = crowd(world, 64, enabled=False, budget=64).serve(request)
    return ALONE[key]


def continued(request: Request) -> list[int]:
    """Its tokens if nothing stopped it."""
    return alone(replace(request, max_new_tokens=CONTEXT_LENGTH, stop_token_ids=frozenset())).tokens


def run_any_plans(max_examples: int, **options) -> Counter[str]:
    """The property. Returns how often each event happened."""
    seen: Counter[str] = Counter()

    @settings(max_examples=max_examples, deadline=None, database=None, **options)
    @given(world=plans.worlds, requests=plans.requests(continued), script=plans.scripts)
    def any_plan_sequence_gives_the_same_bits(world, requests, script):
        largest = max(min(len(one.prompt) + one.max_new_tokens, CONTEXT_LENGTH) for one in requests)
        together = crowd(world, largest + world.spare_tokens)
        cut_short = plans.play(together, requests, script)
        assert_as_alone(together.answers, requests, alone, cut_short)
        seen.update(fake.events(together))

    any_plan_sequence_gives_the_same_bits()
    return seen


EVENTS = set(fake.EVENTS) - {"dropped_tokens"}
"""Nothing is dropped by a runner without lag."""


def test_any_plan_sequence_gives_the_same_bits():
    seen = run_any_plans(40, derandomize=True)
    assert all(seen[event] for event in EVENTS), f"an event never happened: {seen}"


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_any_plan_sequence_gives_the_same_bits_at_length():
    run_any_plans(5000)


@pytest.mark.slow
@pytest.mark.parametrize(
    "defect",
    [
        fake.match_one_page_too_many,
        fake.publish_one_token_early,
        fake.merge_into_the_wrong_page,
    ],
    ids=lambda defect: defect.__name__,
)
def test_the_property_turns_red_on(defect: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch):
    """Defects of the cache that only wrong numbers show; where they are NaN, sampling stops the engine."""
    monkeypatch.setattr(Cache, "check", lambda cache: None)
    defect(monkeypatch)
    with pytest.raises((AssertionError, EngineError), match=r"was told|submit failed"):
        run_any_plans(500, derandomize=True, phases=[Phase.generate], report_multiple_bugs=False)
