"""The GPU runner: a sequence keeps its bits however it is cut, placed, accompanied and launched."""

from __future__ import annotations

from functools import cache, partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.crowd import Answer, Crowd, assert_as_alone
from tests.gpu.device import INTERPRETED
from tests.gpu.models import MAX_TOKENS, NUM_PAGES, fresh, model
from tests.models.memory import VOCABULARY
from tests.models.variants import tokens
from zerokl.cache import Cache
from zerokl.engine.loop import Engine
from zerokl.errors import EngineError
from zerokl.runner import CpuRunner
from zerokl.scheduler import Limits, Scheduler
from zerokl.types import LogprobSpec, Request, RequestId, SamplingParams

SPEC = LogprobSpec(2, (0, 283))
CONTEXT = 200 if INTERPRETED else 700
EXAMPLES = 2 if INTERPRETED else 30


def crowd(graphs: bool, budget: int = MAX_TOKENS, running: int = 16, enabled: bool = True) -> Crowd:
    limits = Limits(
        context_length=CONTEXT, max_running_requests=running, max_queued_requests=99, chunked_prefill_size=budget
    )
    runner = fresh(graphs)
    return Crowd(Engine(Scheduler(limits, Cache(NUM_PAGES, 64, enabled), runner.lag), runner))


@cache
def alone(request: Request) -> Answer:
    """Its answer in an engine of its own: eager, uncached, in chunks as large as they come."""
    (answer,) = crowd(False, enabled=False).serve(replace(request, request_id=RequestId(0)))
    return answer


PARAMS = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.9, seed=7),
    SamplingParams(temperature=0.8, top_k=30, top_p=0.9, seed=2),
    SamplingParams(temperature=1.0, presence_penalty=0.5, seed=3),
]
"""Two that the device draws, two that take the host's way; the last is never planned ahead."""


def request_of(number: int, length: int, outputs: int, kind: int, scored: bool) -> Request:
    story = tuple(tokens(length if number % 3 else 2 * length, VOCABULARY)[:length])
    return Request(
        RequestId(number),
        story,
        outputs,
        PARAMS[kind],
        logprobs=SPEC if kind != 1 else None,
        logprob_start=0 if scored and kind != 1 else -1,
    )


LENGTHS = [1, 5, 17, 63, 64, 65, 130] if INTERPRETED else [1, 5, 17, 63, 64, 65, 130, 256, 257, 511, 513, 600]
shapes = st.lists(
    st.tuples(st.sampled_from(LENGTHS), st.integers(0, 4 if INTERPRETED else 12), st.integers(0, 3), st.booleans()),
    min_size=1,
    max_size=3 if INTERPRETED else 9,
)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("graphs", [False, True])
def test_any_company_cuts_and_arrivals_give_the_same_bits(graphs):
    @settings(max_examples=EXAMPLES, deadline=None, database=None, derandomize=True)
    @given(shapes, st.integers(1, 8), st.sampled_from([3, 16, 40, MAX_TOKENS]), st.integers(0, 5))
    def property_of_bits(shapes, running, budget, gap):
        requests = [request_of(number, *shape) for number, shape in enumerate(shapes)]
        together = crowd(graphs, budget, running)
        for request in requests:
            together.submit(request)
            together.steps(gap)
        together.finish_all()
        assert_as_alone(together.answers, requests, alone)

    property_of_bits()


def test_an_idle_and_a_busy_server_tell_the_same_prompt_the_same_logprobs():
    """The classic failure: one server is idle, the other still decodes a warm-up request, and the padded prefill shares
    its forward pass."""
    asked = request_of(1, 60, 4, 0, True)
    idle, busy = crowd(True), crowd(True)
    (quiet,) = idle.serve(asked)
    busy = crowd(True)
    for number in range(2, 5):
        busy.submit(request_of(number, 20 * number, 30, 1, False))
    busy.steps(7)
    busy.submit(asked)
    busy.finish_all()
    assert busy.answers[asked.request_id] == quiet
    assert quiet.scores.rows == 59


def test_logprobs_are_near_the_cpus():
    asked = request_of(1, 130, 0, 0, True)
    (ours,) = crowd(True).serve(asked)
    limits = Limits(context_length=CONTEXT, chunked_prefill_size=512)
    (theirs,) = Crowd(Engine(Scheduler(limits, Cache(8, 64), 0), CpuRunner(model("cpu"), 8, 64))).serve(asked)
    found, expected = (np.frombuffer(one.scores.chosen, np.float32) for one in (ours, theirs))
    assert np.abs(found - expected).mean() < (1e-4 if INTERPRETED else 0.2)


def test_a_step_that_waits_for_a_token_nobody_drew_is_refused():
    together = crowd(False)
    together.submit(request_of(1, 20, 3, 0, False))
    together.step()
    together.runner.places.clear()
    with pytest.raises(EngineError, match="submit failed"):
        together.steps(2)


@pytest.mark.device
def test_a_missing_stream_dependency_is_seen(monkeypatch):
    """The planted defect: the next step's inputs are copied beside the step that still reads its own."""
    requests = [request_of(number, 40, 8, 0, False) for number in range(6)]
    expected = [alone(request) for request in requests]

    def beside(runner, host):
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            runner.inputs[: len(host)].copy_(host, non_blocking=True)
        side.synchronize()
        torch.cuda._sleep(20_000_000)  # the step starts late, so the next step's inputs come first

    together = crowd(True)
    monkeypatch.setattr(together.runner, "_send", partial(beside, together.runner), raising=False)
    try:
        found = together.serve(*requests)
    except EngineError:
        return
    finally:
        torch.cuda.synchronize()
    assert found != expected


@pytest.mark.device
def test_overlap_with_a_slow_device_moves_no_bit(monkeypatch):
    """The same spin, in its place: behind the copy, on the runner's stream."""
    requests = [request_of(number, 40, 8, 0, False) for number in range(6)]
    together = crowd(True)
    send = together.runner._send

    def late(host):
        send(host)
        torch.cuda._sleep(20_000_000)

    monkeypatch.setattr(together.runner, "_send", late, raising=False)
    assert together.serve(*requests) == [alone(request) for request in requests]
