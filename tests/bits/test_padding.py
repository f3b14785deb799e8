"""Padded steps and captured graphs on the CPU: the GPU runner's plans, run by the CPU's kernels.

A fake graph is a function of one buffer at fixed places, captured once per bucket: what an earlier, larger step left
in it is still there. Padding rows write no key and are read by nobody, so no bit depends on the bucket.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from tests.crowd import Answer, Crowd, assert_as_alone
from tests.models.memory import VOCABULARY, tiny_model
from tests.models.variants import tokens
from zerokl import ops
from zerokl.cache import Cache
from zerokl.engine.loop import Engine
from zerokl.errors import EngineError
from zerokl.runner import CpuRunner
from zerokl.runner.buckets import PAGE_SIZE, Capacity, Kind, Layout
from zerokl.runner.kv import KvPools
from zerokl.runner.packing import Packed, pack_step, views_of
from zerokl.runner.wanted import answers, wanted_rows
from zerokl.scheduler import Limits, Scheduler
from zerokl.types import LogprobSpec, Request, RequestId, SamplingParams, StepPlan, StepResult

NUM_PAGES, CONTEXT = 24, 512
SPEC = LogprobSpec(2, (0, 283))


@cache
def model():
    return tiny_model(5, num_key_value_heads=2, tie_word_embeddings=False, max_position_embeddings=CONTEXT)


class PaddedRunner:
    """Steps padded to buckets, run through fake graphs; a token is known to the host one step late."""

    lag = 1

    def __init__(self) -> None:
        self.capacity = Capacity(256, 16, CONTEXT // PAGE_SIZE, (Kind(None, 2),), 512, 64)
        self.buffer = np.full(self.capacity.layout(256, False).size, 2**20, np.int32)
        self.pools = KvPools(model(), NUM_PAGES, PAGE_SIZE, fill=np.nan)
        self.drawn = np.full(16, -1, np.int32)
        self.places: dict[RequestId, int] = {}
        self.graphs: dict[Layout, Callable[[np.ndarray], tuple[np.ndarray, ...]]] = {}
        self.padded_rows = 0

    def submit(self, plan: StepPlan):
        packed = pack_step(plan.segments, self.places, self.capacity, self.buffer)
        self.padded_rows += packed.layout.tokens - int(packed.row_starts[-1])
        if packed.layout not in self.graphs:
            self.graphs[packed.layout] = self.captured(packed.layout)
        parts = self.graphs[packed.layout](packed.row_starts)
        wanted = wanted_rows(plan.segments, packed.row_starts)
        segments = answers(model().logits_of, parts, wanted, len(plan.segments), 100)
        for place, i in enumerate(wanted.drawing):
            self.drawn[place] = segments[i].token
        self.places = {plan.segments[i].request_id: place for place, i in enumerate(wanted.drawing)}
        return Later(StepResult(plan.step, tuple(segments)))

    def captured(self, layout: Layout) -> Callable[[np.ndarray], tuple[np.ndarray, ...]]:
        """Reads the buffer's own memory at each call, as a graph does."""
        views = views_of(layout, self.buffer)

        def replay(row_starts: np.ndarray) -> tuple[np.ndarray, ...]:
            ids = np.where(views["tokens"] < 0, self.drawn[-1 - np.minimum(views["tokens"], -1)], views["tokens"])
            bounds = np.append(row_starts, layout.tokens).astype(np.int32)  # the CPU wants padding in a segment too
            table = np.concatenate(
                (views["page_table"][: len(row_starts) - 1], np.zeros((1, layout.table_width), np.int32))
            )
            ragged = ops.Ragged(views["positions"], views["slots"], bounds, table, PAGE_SIZE)
            return model().rows(ids.astype(np.int32), ragged, self.pools.layers(ragged))

        return replay


class Later:
    def __init__(self, answer: StepResult) -> None:
        self.answer = answer

    def result(self) -> StepResult:
        return self.answer


def server(runner=None, budget: int = 128) -> Crowd:
    runner = runner or PaddedRunner()
    limits = Limits(
        context_length=CONTEXT, max_running_requests=16, max_queued_requests=99, chunked_prefill_size=budget
    )
    return Crowd(Engine(Scheduler(limits, Cache(NUM_PAGES, PAGE_SIZE), runner.lag), runner))


def request(number: int, length: int, outputs: int, temperature: float = 0.0) -> Request:
    sampling = SamplingParams(temperature=temperature, seed=number)
    story = tuple(tokens(length, VOCABULARY))
    return Request(RequestId(number), story, outputs, sampling, logprobs=SPEC, logprob_start=0)


@cache
def alone(asked: Request) -> Answer:
    """Unpadded, by the plain runner."""
    (answer,) = server(CpuRunner(model(), NUM_PAGES, PAGE_SIZE, fill=np.nan)).serve(asked)
    return answer


ASKED = [request(0, 60, 5), request(1, 7, 9, 0.8), request(2, 130, 3), request(3, 1, 12, 1.0), request(4, 65, 4)]


@pytest.mark.parametrize("budget", [5, 33, 128])
def test_padding_and_graphs_move_no_bit(budget):
    crowd = server(budget=budget)
    for asked in ASKED:
        crowd.submit(asked)
        crowd.steps(2)
    crowd.finish_all()
    assert crowd.runner.padded_rows > 0
    assert_as_alone(crowd.answers, ASKED, alone)


def test_an_idle_and_a_busy_server_tell_the_same_prompt_the_same_logprobs():
    """The classic failure: one server is idle, the other still decodes a warm-up request, and the padded prefill shares
    its forward pass."""
    idle, busy = server(), server()
    (quiet,) = idle.serve(ASKED[0])
    busy.submit(request(9, 20, 30, 1.0))
    busy.steps(4)
    busy.submit(ASKED[0])
    busy.finish_all()
    assert busy.answers[ASKED[0].request_id] == quiet == alone(ASKED[0])
    assert quiet.scores.rows == 59


# Planted defects: each turns the tests above red


def padding_writes_where_the_last_row_wrote(packed: Packed, buffer: np.ndarray) -> None:
    views, used = views_of(packed.layout, buffer), int(packed.row_starts[-1])
    views["slots"][used:] = views["slots"][used - 1]
    views["positions"][used:] = views["positions"][used - 1]


def padding_is_left_from_the_step_before(packed: Packed, buffer: np.ndarray) -> None:
    views, used = views_of(packed.layout, buffer), int(packed.row_starts[-1])
    views["positions"][used:], views["slots"][used:] = np.arange(packed.layout.tokens - used), 3


def rows_are_counted_from_the_bucket(packed: Packed, buffer: np.ndarray) -> None:
    packed.row_starts[1:] += packed.layout.tokens - packed.row_starts[-1]


@pytest.mark.parametrize(
    "defect",
    [
        padding_writes_where_the_last_row_wrote,
        padding_is_left_from_the_step_before,
        rows_are_counted_from_the_bucket,
    ],
    ids=lambda defect: defect.__name__,
)
def test_a_defect_of_padding_is_seen(defect, monkeypatch):
    def defective(*given):
        packed = pack_step(*given)
        defect(packed, given[3])
        return packed

    for asked in ASKED:
        alone(asked)
    monkeypatch.setattr("tests.bits.test_padding.pack_step", defective)
    with pytest.raises((AssertionError, EngineError, IndexError)):
        test_padding_and_graphs_move_no_bit(33)
