"""Hypothesis strategies for "any valid sequence of plans", and the script that makes an engine take them.

A script bends every choice that policy may make: the token budget of each step (so chunks are cut anywhere), who is
preempted, what is evicted, when requests arrive and when they are cut short. None of it may move a bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from tests.crowd import Crowd, fake_crowd
from zerokl.types import Finish, LogprobSpec, Pools, Request, RequestId, SamplingParams, StatePool, WindowPool

CONTEXT_LENGTH = 28
"""Short, so that the context end comes up."""


class Turn(Struct, frozen=True):
    """What happens before one step."""

    arrivals: int = 1
    budget: int = 8
    preempt: int | None = None
    """Which of the running, modulo their number."""
    evict: int = 0
    evict_shelf: int = 0
    """How many places of the other kinds fall out, in turn."""
    flush_device: bool = False
    cut: int | None = None
    """Which request is cut short, modulo the number submitted."""


class World(Struct, frozen=True):
    """What is there to run in."""

    lag: int
    page_size: int
    spare_tokens: int
    """Pool beyond what the largest request needs alone."""
    running: int
    windows: tuple[int, ...] = ()
    spare_windows: float = 0
    """Of each sliding kind: 0 is what one request needs alone, 1 a page for each full one."""
    interval_pages: int = 0
    """Pages between checkpoints; 0: there are no states."""
    checkpoints: int = 0
    live: int = 1
    host: float = 0
    """Host places of each kind for every one on the device; 0: there is no host tier."""


def prompts(vocabulary: int = 2, longest: int = 20) -> st.SearchStrategy[list[int]]:
    """Of two tokens, so that prefixes collide; often a run of one token, so that they do so for long."""
    return st.one_of(
        st.lists(st.integers(0, vocabulary - 1), min_size=1, max_size=longest),
        st.integers(1, longest).map(lambda length: [1] * length),
    )


@st.composite
def requests(
    draw: st.DrawFn, continued: Callable[[Request], list[int]], vocabulary: int = 2, stop: int = 3
) -> list[Request]:
    """Some requests; a follow-up's prompt goes on where an earlier request's answer might have gone.

    `continued` gives a request's tokens past its stop. So a follow-up hits pages that were decoded, and would hit those
    of tokens that were drawn and dropped.
    """
    made: list[Request] = []
    for id in range(draw(st.integers(1, 7))):
        prompt = prompts(vocabulary)
        if made and draw(st.booleans()):
            earlier = draw(st.sampled_from(made))
            tokens = [*earlier.prompt, *continued(earlier)]
            length = draw(st.integers(len(earlier.prompt), len(tokens)))
            prompt = st.just([*tokens[:length], draw(st.integers(0, vocabulary - 1))][: CONTEXT_LENGTH - 1])
        made.append(draw(one_request(RequestId(id), prompt, stop)))
    return made


@st.composite
def one_request(draw: st.DrawFn, id: RequestId, prompt: st.SearchStrategy[list[int]], stop: int) -> Request:
    tokens = draw(prompt)
    sampling = SamplingParams(
        temperature=draw(st.sampled_from([0.0, 1.0])),
        seed=draw(st.integers(0, 1)),
        stream=draw(st.integers(0, 1)),
        presence_penalty=draw(st.sampled_from([0.0, 0.0, 0.0, 0.5])),
    )
    return Request(
        id,
        tokens,
        draw(st.integers(0, 12)),
        sampling,
        min_new_tokens=draw(st.integers(0, 3)),
        stop_token_ids=draw(st.sampled_from([frozenset(), frozenset([stop]), frozenset([stop, 1])])),
        logprobs=draw(st.sampled_from([None, LogprobSpec(), LogprobSpec(2, (1, 4))])),
        logprob_start=draw(st.integers(-1, len(tokens))),
        priority=draw(st.sampled_from([0, 0, 0, 1])),
        cache_salt=draw(st.sampled_from(["", "", "", "salt"])),
        use_cache=draw(st.sampled_from([True, True, True, False])),
    )


turns = st.builds(
    Turn,
    arrivals=st.integers(0, 3),
    budget=st.integers(1, 12),
    preempt=st.none() | st.integers(0, 7),
    evict=st.sampled_from([0, 0, 0, 1, 5]),
    cut=st.sampled_from([None, None, None, None, None, 0, 1, 2, 3]),
)
scripts = st.lists(turns, max_size=25)
hybrid_scripts = st.lists(
    st.builds(lambda turn, evict: replace(turn, evict_shelf=evict), turns, st.sampled_from([0, 0, 1, 4])), max_size=25
)
worlds = st.builds(
    World,
    lag=st.integers(0, 1),
    page_size=st.sampled_from([1, 2, 3, 8]),
    spare_tokens=st.sampled_from([0, 2, 5, 10, 200]),
    running=st.sampled_from([1, 2, 8]),
)


hybrid_worlds = st.builds(
    World,
    lag=st.integers(0, 1),
    page_size=st.sampled_from([1, 2, 3, 4]),
    spare_tokens=st.sampled_from([0, 5, 10, 200]),
    running=st.sampled_from([1, 2, 8]),
    windows=st.sampled_from([(), (5,), (5,), (1,), (2, 8), (7, 3)]),
    spare_windows=st.sampled_from([0, 0.2, 1]),
    interval_pages=st.sampled_from([0, 1, 1, 2, 3]),
    checkpoints=st.sampled_from([0, 1, 3, 300]),
    live=st.sampled_from([1, 2, 8]),
)
host_worlds = st.builds(
    lambda world, host: replace(world, host=host), worlds | hybrid_worlds, st.sampled_from([0.2, 1, 1, 20])
)


def pools_in(world: World, num_pages: int) -> Pools:
    """The world's pools of every kind."""
    windows = []
    for window in world.windows:
        alone = min(-(-(window - 1) // world.page_size) + 1, num_pages)
        windows.append(WindowPool(window, max(alone, int(world.spare_windows * num_pages))))
    states = StatePool(world.interval_pages * world.page_size, world.live, world.checkpoints)
    pools = Pools(num_pages, world.page_size, tuple(windows), states if world.interval_pages else None)
    return replace(pools, host=host_of(pools, world.host)) if world.host else pools


def host_of(pools: Pools, ratio: float) -> Pools:
    """A host tier of `ratio` places for each on the device."""
    states = pools.states
    return Pools(
        int(pools.num_pages * ratio),
        pools.page_size,
        tuple(WindowPool(pool.window, int(pool.num_pages * ratio)) for pool in pools.windows),
        StatePool(states.interval, 0, int(states.num_checkpoints * ratio)) if states else None,
    )


host_scripts = st.lists(
    st.builds(
        lambda turn, evict, flush: replace(turn, evict_shelf=evict, flush_device=flush),
        turns,
        st.sampled_from([0, 0, 1, 4]),
        st.sampled_from([False, False, False, True]),
    ),
    max_size=25,
)


def crowd_in(world: World, requests: Sequence[Request]) -> Crowd:
    """A crowd over the fake runner whose pool holds the largest request and the world's spare."""
    largest = max(min(len(one.prompt) + one.max_new_tokens, CONTEXT_LENGTH) for one in requests)
    pools = pools_in(world, -(-(largest + world.spare_tokens) // world.page_size))
    return fake_crowd(
        lag=world.lag,
        page_size=world.page_size,
        num_pages=pools.num_pages,
        context_length=CONTEXT_LENGTH,
        running=world.running,
        windows=pools.windows,
        states=pools.states,
        host=pools.host,
    )


def play(crowd: Crowd, requests: Sequence[Request], script: Sequence[Turn]) -> list[RequestId]:
    """Runs the script, then everything to its end. Returns the ids of requests that were cut short."""
    waiting, cut_short = list(requests), []
    for turn in script:
        for _ in range(min(turn.arrivals, len(waiting))):
            crowd.submit(waiting.pop(0))
        id = cut(crowd, turn)
        if id is not None:
            cut_short.append(id)
        bend(crowd, turn)
        crowd.step()
    for request in waiting:
        crowd.submit(request)
    crowd.finish_all()
    return cut_short


def cut(crowd: Crowd, turn: Turn) -> RequestId | None:
    """Ends a request from outside, as a client that goes away or a stop string does."""
    if turn.cut is None or not crowd.answers:
        return None
    id = list(crowd.answers)[turn.cut % len(crowd.answers)]
    ending = Finish("abort") if turn.cut % 2 else Finish("stop", matched="text")
    return id if crowd.engine.finish(id, ending) else None


def bend(crowd: Crowd, turn: Turn) -> None:
    scheduler = crowd.scheduler
    scheduler.limits = replace(scheduler.limits, chunked_prefill_size=turn.budget)
    if turn.preempt is not None and scheduler._running:
        scheduler._preempt(scheduler._running[turn.preempt % len(scheduler._running)])
    for _ in range(turn.evict):
        crowd.cache._evict_one()
    for number in range(turn.evict_shelf if crowd.cache.shelves else 0):
        crowd.cache.shelves[number % len(crowd.cache.shelves)].evict_one()
    if turn.flush_device:
        crowd.cache.flush_device()
    crowd.cache.check()
