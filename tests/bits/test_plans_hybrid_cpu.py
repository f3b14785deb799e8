"""Plan-independence of the whole engine with real numbers and layers of several kinds: `test_plans_hybrid.py`'s plans.

Windows are a few tokens and pages one to four, so that pages pass out, checkpoints are resumed from and both fall out
all the time; free pages and slots hold NaN. Each request is told, to the bit, what it is told alone and uncached.
"""

from __future__ import annotations

from collections import Counter
from functools import cache

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests import plans
from tests.bits import test_plans_hybrid as fake
from tests.crowd import Answer, Crowd, assert_as_alone
from tests.models.families import family_model
from tests.plans import CONTEXT_LENGTH, World
from zerokl.cache import Cache
from zerokl.engine.loop import Engine
from zerokl.errors import EngineError
from zerokl.models.memory import windows_of
from zerokl.runner import CpuRunner
from zerokl.runner.host import HostPools
from zerokl.scheduler import Limits, Scheduler
from zerokl.suites import register_cpu_ci
from zerokl.types import LogprobSpec, Request, RequestId, SamplingParams

register_cpu_ci(est_time=50, stage="base-a", runner_config="cpu-small")
register_cpu_ci(est_time=60, stage="nightly", runner_config="cpu-small", nightly=True)

pytestmark = pytest.mark.slow

FAMILIES: dict[str, dict[str, int]] = {
    "gemma3": {"sliding_window": 6},
    "mistral": {"sliding_window": 3},
    "inkling": {"sliding_window_size": 6},
    "lfm2": {},
    "qwen3-next": {},
    "granite-hybrid": {},
}


OVERRIDES = dict(FAMILIES)
"""Also of the families that `test_plans_dense_cpu.py` runs."""
QUICK = ("gemma3", "inkling")
SOME_SLOW = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in FAMILIES]
GREEDY = SamplingParams(temperature=0.0)


@cache
def model_of(family: str):
    return family_model(family, **OVERRIDES[family])


def crowd(family: str, world: World, num_tokens: int, enabled: bool = True, budget: int = 16) -> Crowd:
    """An engine over the CPU runner, whose free pages and slots hold NaN."""
    model = model_of(family)
    has_states = any(layer.states for layer in model.memory)
    world = replace(world, windows=windows_of(model.memory), interval_pages=max(1, world.interval_pages) * has_states)
    pools = plans.pools_in(world, -(-num_tokens // world.page_size))
    shelves = {"windows": pools.windows, "states": pools.states, "host": pools.host}
    runner = CpuRunner(model, pools.num_pages, pools.page_size, **shelves, fill=np.nan)
    limits = Limits(
        context_length=CONTEXT_LENGTH,
        max_running_requests=world.running,
        max_queued_requests=1000,
        chunked_prefill_size=budget,
    )
    return Crowd(Engine(Scheduler(limits, Cache(pools.num_pages, pools.page_size, enabled, **shelves)), runner))


ALONE: dict[str, Answer] = {}


def alone(family: str, request: Request) -> Answer:
    """Its answer in an engine of its own: no cache, one prefill, one page."""
    key = family + repr(replace(request, request_id=0))
    if key not in ALONE:
        world = World(lag=0, page_size=64, spare_tokens=0, running=1, spare_windows=1)
        (ALONE[key],) = crowd(family, world, 64, enabled=False, budget=64).serve(request)
    return ALONE[key]


def run_any_plans(family: str, max_examples: int, **options) -> Counter[str]:
    """The property. Returns how often each event happened."""
    seen: Counter[str] = Counter()

    def continued(request: Request) -> list[int]:
        return alone(family, replace(request, max_new_tokens=CONTEXT_LENGTH, stop_token_ids=frozenset())).tokens

    @settings(max_examples=max_examples, deadline=None, database=None, **options)
    @given(
        world=plans.hybrid_worlds.map(lambda world: replace(world, lag=0)),
        requests=plans.requests(continued),
        script=plans.hybrid_scripts,
        spare=st.sampled_from([0, 10, 200]),
    )
    def any_plan_sequence_gives_the_same_bits(world, requests, script, spare):
        largest = max(min(len(one.prompt) + one.max_new_tokens, CONTEXT_LENGTH) for one in requests)
        together = crowd(family, world, largest + spare)
        cut_short = plans.play(together, requests, script)
        assert_as_alone(together.answers, requests, lambda request: alone(family, request), cut_short)
        seen.update(fake.hybrid_events(together, replace(world, windows=(6,))))

    any_plan_sequence_gives_the_same_bits()
    return seen


@pytest.mark.parametrize("family", SOME_SLOW)
def test_any_plan_sequence_gives_the_same_bits(family):
    windows, states = windows_of(model_of(family).memory), any(layer.states for layer in model_of(family).memory)
    seen = run_any_plans(family, 40 if states else 20, derandomize=True)
    expected = {"preemptions", "chunked_prefills", "hits", "evicted", "merged"}
    expected |= {"sliding evicted", "stopped by sliding"} if windows else set()
    expected |= {"state evicted", "state hits", "stopped by state"} if states else set()
    assert all(seen[event] for event in expected), f"an event never happened: {seen}"


@pytest.mark.parametrize("family", SOME_SLOW)
def test_second_turns_and_branches_hit_exactly_and_keep_their_bits(family):
    """Answers go on past the window; then every request is asked again, longer, and cut at every offset of a page."""
    world = World(lag=0, page_size=4, spare_tokens=0, running=8, spare_windows=1, checkpoints=400, live=8)
    together = crowd(family, world, 1600, budget=9)
    first = [Request(RequestId(id), [id, 1, 2, 3, 4], 15, GREEDY, logprobs=LogprobSpec()) for id in range(3)]
    answers = together.serve(*first)
    stories = [[*request.prompt, *answer.tokens] for request, answer in zip(first, answers, strict=True)]
    new = min(set(range(100)).difference(*stories))
    again = [
        Request(RequestId(100 * id + cut), [*tokens[:cut], new, 8], 5, GREEDY, logprobs=LogprobSpec())
        for id, tokens in enumerate(stories, 1)
        for cut in range(6, 20)
    ]
    told = together.serve(*again)
    assert_as_alone(together.answers, [*first, *again], lambda request: alone(family, request))
    assert [answer.cached_tokens for answer in told] == [4 * (cut // 4) for _ in stories for cut in range(6, 20)]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_round_trip_over_the_host_changes_no_bit(family):
    """Every turn finds nothing on the device and everything on the host."""
    world = World(lag=0, page_size=4, spare_tokens=0, running=8, spare_windows=1, checkpoints=400, live=8, host=1)
    together = crowd(family, world, 1600, budget=9)
    asked, tokens = [], [1, 2, 3, 4, 5]
    for turn in range(4):
        asked.append(Request(RequestId(turn), list(tokens), 5, GREEDY, logprobs=LogprobSpec(2)))
        answer = together.serve(asked[-1])[0]
        assert answer.cached_tokens == (4 * ((len(tokens) - 2) // 4) if turn else 0)
        tokens += [*answer.tokens, 7]
        together.cache.flush_device()
        assert together.cache.stats.cached == 0
        together.serve(Request(RequestId(100 + turn), [9], 1, use_cache=False))  # its step carries the copies
        forget_the_device(together.runner)
    assert_as_alone(together.answers, asked, lambda request: alone(family, request))
    assert all(kind.loaded for kind in together.cache.stats.host)


def forget_the_device(runner: CpuRunner) -> None:
    for array in (*runner.pools.keys, *runner.pools.values):
        array.fill(np.nan)
    for arrays in (arrays for layer in (runner.states.arrays if runner.states else ()) for arrays in layer):
        arrays.pool.fill(np.nan)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_host_copy_that_loses_a_layer_is_seen(family, monkeypatch):
    make = HostPools.__init__

    def without_the_first(pools: HostPools, *arguments, **options) -> None:
        make(pools, *arguments, **options)
        del pools._keys[0]

    monkeypatch.setattr(HostPools, "__init__", without_the_first)
    with pytest.raises((AssertionError, EngineError), match=r"was told|submit failed"):
        test_a_round_trip_over_the_host_changes_no_bit(family)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("family", FAMILIES)
def test_any_plan_sequence_gives_the_same_bits_at_length(family):
    run_any_plans(family, 2000)


@pytest.mark.slow
@pytest.mark.parametrize(
    "defect",
    [
        fake.let_go_of_a_window_one_page_early,
        fake.match_with_one_page_of_window_too_few,
        fake.start_from_the_live_slot_after_a_hit,
        fake.publish_the_last_checkpoint_at_every_page,
        fake.forget_which_sliding_page_a_merge_left,
    ],
    ids=lambda defect: defect.__name__,
)
def test_the_property_turns_red_on(defect, monkeypatch: pytest.MonkeyPatch):
    """Defects of the cache that only wrong numbers show; where they are NaN, sampling stops the engine."""
    monkeypatch.setattr(Cache, "check", lambda cache: None)
    defect(monkeypatch)
    with pytest.raises((AssertionError, EngineError), match=r"was told|submit failed"):
        run_any_plans("inkling", 300, derandomize=True, phases=[Phase.generate], report_multiple_bugs=False)
