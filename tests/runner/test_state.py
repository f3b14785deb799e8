"""State slots and sliding pages as the runner lays them out, and the plans that it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from tests.models.families import family_model
from tests.models.memory import tiny_model
from zerokl.errors import EngineError
from zerokl.models.memory import Conv, LayerMemory, Recurrent
from zerokl.runner import CpuRunner
from zerokl.runner.batch import PASSED_PAGE, ragged_tokens, window_ragged
from zerokl.runner.host import HostPools
from zerokl.runner.kv import KvPools
from zerokl.runner.state import StatePools, step_states
from zerokl.types import (
    ZERO_STATE,
    Copy,
    PageId,
    Pools,
    RequestId,
    Segment,
    StatePool,
    StateSlot,
    StateUse,
    StepPlan,
    WindowPages,
    WindowPool,
)

MEMORY = (
    LayerMemory(states=(Conv(4, 3), Recurrent((2, 2), 5, chunk=4))),
    LayerMemory(),
    LayerMemory(states=(Conv(2, 1),)),
)
POOL = StatePool(interval=4, num_live=2, num_checkpoints=3)


def segment(start: int, count: int, state: StateUse | None = None, windows: tuple[WindowPages, ...] = ()) -> Segment:
    pages = [PageId(page) for page in range(8)]
    return Segment(RequestId(7), start, [1] * count, pages, state=state, windows=windows)


def use(source: int, live: int, *checkpoints: tuple[int, int]) -> StateUse:
    return StateUse(StateSlot(source), StateSlot(live), tuple((p, StateSlot(slot)) for p, slot in checkpoints))


def test_the_steps_states_are_laid_out_as_the_plan_says():
    segments = [segment(4, 6, use(3, 1, (8, 2))), segment(0, 9, use(-1, 0, (4, 4), (8, 3)))]
    _, ragged = ragged_tokens(segments, 4)
    step = step_states(segments, ragged)
    assert step.live.tolist() == [1, 0]
    assert step.write_segments.tolist() == [0, 1, 1]
    assert step.write_rows.tolist() == [4, 6 + 4, 6 + 8]
    assert step.write_slots.tolist() == [2, 4, 3]
    assert (step.starts.tolist(), step.ends.tolist()) == ([4, 0], [10, 9])
    arrays = (step.live, step.write_segments, step.write_rows, step.write_slots)
    assert all(array.dtype == np.int32 and array.flags.c_contiguous for array in arrays)


def test_a_segment_starts_from_its_checkpoint_from_zeros_or_from_where_it_was():
    pools = StatePools(MEMORY, POOL, fill=np.nan)
    for layer in pools.arrays:
        for arrays in layer:
            arrays.pool[:] = np.arange(5).reshape(5, *[1] * (arrays.pool.ndim - 1))
    begun = [segment(8, 1, use(3, 1)), segment(0, 2, use(ZERO_STATE, 0))]
    pools.begin(begun, np.array([1, 0], np.int32))
    assert all(
        [arrays.pool[slot].max() for slot in range(5)] == [0, 3, 2, 3, 4] for layer in pools.arrays for arrays in layer
    )
    pools.begin([segment(9, 1, use(1, 1))], np.array([1], np.int32))
    assert all(arrays.pool[1].max() == 3 for layer in pools.arrays for arrays in layer)


def test_not_zeroing_a_reused_slot_would_show(monkeypatch):
    monkeypatch.setattr(StatePools, "begin", lambda pools, segments, live: None)
    with pytest.raises(AssertionError):
        test_a_segment_starts_from_its_checkpoint_from_zeros_or_from_where_it_was()


def test_layers_get_their_states_in_the_order_of_their_declaration():
    pools = StatePools(MEMORY, POOL)
    segments = [segment(0, 3, use(-1, 0))]
    _, ragged = ragged_tokens(segments, 4)
    first, none, last = pools.layers(step_states(segments, ragged))
    assert [state.pool.shape for state in first] == [(5, 3, 3), (5, 2, 2)]
    assert first[1].inputs.shape == (2, 4, 5), "a recurrent layer's inputs are live slots' only"
    assert none == ()
    assert last[0].pool.shape == (5, 1, 1)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (segment(4, 2), "request 7 at 4 can't start from state None"),
        (segment(4, 2, use(-1, 0)), "request 7 at 4 can't start from state"),
        (segment(0, 2, use(0, 0)), "request 7 at 0 can't start from state"),
        (segment(4, 2, use(0, 0, (4, 3))), "a checkpoint at 4, outside its segment"),
        (segment(4, 2, use(0, 0, (8, 3))), "a checkpoint at 8, outside its segment"),
    ],
)
def test_a_plan_that_names_a_wrong_state_is_our_fault(bad, message):
    _, ragged = ragged_tokens([bad], 4)
    with pytest.raises(EngineError, match=message):
        step_states([bad], ragged)


def test_checkpoints_between_two_chunks_are_refused_at_the_start():
    with pytest.raises(EngineError, match="checkpoints every 6 tokens can't hold a state of chunks of 4"):
        StatePools(MEMORY, StatePool(6, 1, 1))


def sliding(first: int, *pages: int) -> tuple[WindowPages, ...]:
    return (WindowPages(first, [PageId(page) for page in pages]),)


def test_sliding_pages_stand_at_their_positions_and_those_passed_at_none():
    segments = [segment(9, 3, windows=sliding(1, 30, 31)), segment(2, 1, windows=sliding(0, 40, 41))]
    _, ragged = ragged_tokens(segments, 4)
    shape = window_ragged(segments, 0, ragged)
    assert shape.page_table.tolist() == [[PASSED_PAGE, 30, 31], [40, 0, 0]]
    assert shape.slots.tolist() == [31 * 4 + 1, 31 * 4 + 2, 31 * 4 + 3, 40 * 4 + 2]
    assert (shape.positions is ragged.positions, shape.row_starts is ragged.row_starts) == (True, True)


@pytest.mark.parametrize("windows", [sliding(3, 30), sliding(1, 30), sliding(0, 1, 2)])
def test_sliding_pages_that_do_not_hold_the_segment_are_our_fault(windows):
    bad = segment(9, 3, windows=windows)
    _, ragged = ragged_tokens([bad], 4)
    with pytest.raises(EngineError, match=r"request 7: pages .* of sliding kind 0 don't hold positions 9 to 11"):
        window_ragged([bad], 0, ragged)


# The host tier


def test_copies_are_done_in_order_in_every_layer_of_their_kind():
    """What is copied to the host, overwritten on the device and copied back is what it was."""
    model = family_model("inkling", sliding_window_size=6)
    device = Pools(4, 4, (WindowPool(6, 4),), StatePool(4, 2, 2))
    pools, states = KvPools(model, 4, 4, device.windows), StatePools(model.memory, device.states)
    host = HostPools(model, Pools(3, 4, (WindowPool(6, 3),), StatePool(4, 0, 3)), pools, states, fill=np.nan)
    arrays = [*pools.keys, *pools.values, *(one.pool for layer in states.arrays for one in layer)]
    for number, array in enumerate(arrays):
        array[:] = np.arange(len(array)).reshape(-1, *[1] * (array.ndim - 1)) + 10 * number
    before = [array.copy() for array in arrays]
    kinds = [("full", 0), ("sliding", 0), ("state", 0)]
    host.run(Copy(kind, index, 1, 2, to_host=True) for kind, index in kinds)
    for array in arrays:
        array[1] = -1
    host.run(Copy(kind, index, 2, 3, to_host=False) for kind, index in kinds)
    for array, was in zip(arrays, before, strict=True):
        assert (array[3] == was[1]).all()
        assert (array[[0, 2]] == was[[0, 2]]).all()
        assert (array[1] == -1).all()


def test_a_plan_with_copies_needs_a_host_tier():
    runner = CpuRunner(tiny_model(), 4, 4)
    with pytest.raises(EngineError, match="step 3 copies to or from a host tier that isn't there"):
        runner.submit(StepPlan(3, (), (Copy("full", 0, 0, 0, to_host=True),)))
