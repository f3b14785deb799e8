"""The defects that other engines had with such layers, each planted into the real models' engine: each is seen.

The answers that a right engine gives, alone and uncached, are taken before the defect is planted. Then the same
requests run in company, turn after turn, in a small pool whose free places hold NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from tests.bits.test_plans_hybrid_cpu import GREEDY, alone, crowd
from tests.crowd import Answer, assert_as_alone
from tests.plans import World
from zerokl import ops
from zerokl.cache.states import StateHold
from zerokl.errors import EngineError
from zerokl.runner import state as runner_state
from zerokl.runner.host import HostPools
from zerokl.runner.state import StatePools
from zerokl.suites import register_cpu_ci
from zerokl.types import ZERO_STATE, LogprobSpec, Request, RequestId, StateSlot, StateUse

register_cpu_ci(est_time=15, stage="base-a", runner_config="cpu-small")

WORLD = World(lag=0, page_size=4, spare_tokens=0, running=4, spare_windows=1, checkpoints=60, live=4, host=1)
CUTS = (7, 9, 12, 14)


@cache
def expected(family: str) -> tuple[tuple[Request, ...], dict[RequestId, Answer]]:
    """First turns of several lengths; then each text again, cut inside a page or at its edge, other ids behind it."""
    asked = [request(number, [number, *range(1, 5 + number)], 11) for number in range(3)]
    for first in list(asked):
        tokens = [*first.prompt, *alone(family, first).tokens]
        asked += [request(id, [*tokens[:cut], 7, 8, 9], 6) for id, cut in enumerate(CUTS, len(asked))]
    return tuple(asked), {one.request_id: alone(family, one) for one in asked}


def request(number: int, prompt: list[int], new_tokens: int) -> Request:
    return Request(RequestId(number), prompt, new_tokens, GREEDY, logprobs=LogprobSpec(2))


def run(family: str) -> None:
    """Raises AssertionError for a wrong bit or a wrong hit, EngineError for a NaN that reached the sampler."""
    asked, answers = expected(family)
    together = crowd(family, WORLD, 600, budget=7)
    together.serve(*asked[:3])
    told = together.serve(*asked[3:9])
    together.cache.flush_device()
    told += together.serve(*asked[9:])
    assert_as_alone(together.answers, list(asked), lambda one: answers[one.request_id])
    assert [answer.cached_tokens for answer in told] == [4 * (cut // 4) for _ in range(3) for cut in CUTS]
    assert all(kind.loaded for kind in together.cache.stats.host)


@pytest.mark.parametrize("family", ["inkling", "qwen3-next", "granite-hybrid"])
def test_a_right_engine_is_told_right(family: str) -> None:
    run(family)


Patch = pytest.MonkeyPatch


def convolution_slot_not_zeroed(patch: Patch) -> None:
    begin = StatePools.begin

    def stale(pools: StatePools, segments: Any, live: np.ndarray) -> None:
        begin(
            pools,
            [with_source(one, one.state.live) if one.state.source == ZERO_STATE else one for one in segments],
            live,
        )

    patch.setattr(StatePools, "begin", stale)
    patch.setattr(runner_state, "state_use", lambda segment: segment.state)


def with_source(segment: Any, source: StateSlot) -> Any:
    return replace(segment, state=replace(segment.state, source=source))


def checkpoint_one_step_late(patch: Patch) -> None:
    """Of the token after it where there is one."""
    move_writes(patch, lambda step: np.minimum(step.write_rows + 1, step.row_starts[step.write_segments + 1]))


def checkpoint_off_a_page_boundary(patch: Patch) -> None:
    """At the segment's end, as on a grid that starts with the segment."""
    move_writes(patch, lambda step: step.row_starts[step.write_segments + 1])


def move_writes(patch: Patch, rows: Callable[[ops.StepStates], np.ndarray]) -> None:
    make = runner_state.step_states

    def moved(segments: Any, ragged: ops.Ragged) -> ops.StepStates:
        step = make(segments, ragged)
        return replace(step, write_rows=rows(step).astype(np.int32))

    plant_in_runner(patch, moved)


def state_of_the_neighbour_stored(patch: Patch) -> None:
    make = runner_state.step_states

    def of_the_next(segments: Any, ragged: ops.Ragged) -> ops.StepStates:
        step = make(segments, ragged)
        neighbour = (step.write_segments + 1) % np.int32(len(step.live))
        return replace(step, write_segments=neighbour, write_rows=step.row_starts[neighbour + 1])

    plant_in_runner(patch, of_the_next)


def plant_in_runner(patch: Patch, step_states: Any) -> None:
    from zerokl.runner import cpu

    patch.setattr(cpu, "step_states", step_states)


def window_off_by_one(patch: Patch) -> None:
    attention = ops.attention

    def farther(*arguments: Any, window: int | None = None, **options: Any) -> Any:
        return attention(*arguments, window=window + 1 if window else None, **options)

    patch.setattr(ops, "attention", farther)


def window_one_short(patch: Patch) -> None:
    attention = ops.attention

    def nearer(*arguments: Any, window: int | None = None, **options: Any) -> Any:
        return attention(*arguments, window=window - 1 if window else None, **options)

    patch.setattr(ops, "attention", nearer)


def resumed_from_the_live_slot(patch: Patch) -> None:
    use = StateHold.use

    def live(hold: StateHold, start: int, end: int, keeps: bool) -> StateUse:
        found = use(hold, start, end, keeps)
        return found if found.source == ZERO_STATE else replace(found, source=found.live)

    patch.setattr(StateHold, "use", live)


def chunk_formula_in_prefill(patch: Patch) -> None:
    """Decode keeps its one-token recurrence; a segment of several tokens sums their decayed contributions."""
    scan = ops.selective_scan

    def by_chunks(x: Any, b: Any, c: Any, step: Any, decay: Any, skip: Any, state: ops.RecurrentState) -> Any:
        before = ops.chunk_states(state).copy()
        out, share = scan(x, b, c, step, decay, skip, state), x.shape[1] // b.shape[1]
        b, c = b.repeat(share, axis=1), c.repeat(share, axis=1)
        for segment, (start, end) in enumerate(zip(state.step.row_starts, state.step.row_starts[1:], strict=False)):
            kept = np.cumprod(decay[start:end], axis=0)
            for t in range(end - start if end - start > 1 else 0):
                ratios = kept[t] / kept[: t + 1] * step[start : start + t + 1]
                weights = np.einsum("hn,shn->sh", c[start + t], b[start : start + t + 1]) * ratios
                known = np.einsum("hn,hnw->hw", c[start + t], before[segment]) * kept[t][:, None]
                out[start + t] = np.einsum("sh,shw->hw", weights, x[start : start + t + 1]) + known
                out[start + t] += skip[:, None] * x[start + t]
        return out

    patch.setattr(ops, "selective_scan", by_chunks)


def host_copy_that_loses_a_layer(patch: Patch) -> None:
    make = HostPools.__init__

    def without_the_first(pools: HostPools, *arguments: Any, **options: Any) -> None:
        make(pools, *arguments, **options)
        del pools._keys[0]

    patch.setattr(HostPools, "__init__", without_the_first)


def expert_order_by_arrival(patch: Patch) -> None:
    """A token's answers are summed in the order in which their experts were first asked for in the step."""
    experts = ops.experts

    def as_they_came(x: Any, first: Any, second: Any, chosen: Any, weights: Any, **options: Any) -> Any:
        rank = {expert: place for place, expert in enumerate(dict.fromkeys(chosen.T.ravel().tolist()))}
        order = np.argsort(np.vectorize(rank.__getitem__)(chosen), axis=1, kind="stable")
        turned = [np.ascontiguousarray(np.take_along_axis(one, order, axis=1)) for one in (chosen, weights)]
        return experts(x, first, second, *turned, **options)

    patch.setattr(ops, "experts", as_they_came)


DEFECTS = [
    ("inkling", convolution_slot_not_zeroed),
    ("inkling", checkpoint_one_step_late),
    ("inkling", checkpoint_off_a_page_boundary),
    ("inkling", state_of_the_neighbour_stored),
    ("inkling", window_off_by_one),
    ("inkling", window_one_short),
    ("inkling", resumed_from_the_live_slot),
    ("qwen3-next", convolution_slot_not_zeroed),
    ("qwen3-next", checkpoint_one_step_late),
    ("qwen3-next", state_of_the_neighbour_stored),
    ("granite-hybrid", chunk_formula_in_prefill),
    ("inkling", host_copy_that_loses_a_layer),
    ("inkling", expert_order_by_arrival),
]


@pytest.mark.parametrize(("family", "defect"), DEFECTS, ids=lambda one: getattr(one, "__name__", one))
def test_is_seen(family: str, defect: Callable[[Patch], None], monkeypatch: Patch) -> None:
    expected(family)
    defect(monkeypatch)
    with pytest.raises((AssertionError, EngineError), match=r"was told|submit failed"):
        run(family)
