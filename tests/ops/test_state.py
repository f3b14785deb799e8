"""States in and out of slots: whatever the cut and the company, a layer is given what its own sequence left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zerokl import ops
from zerokl.errors import ShapeError

CHANNELS, CHUNK, INPUTS, LIVE = 3, 4, 5, 3
NUM_SLOTS = LIVE + 40


@dataclass
class Story:
    """A sequence of inputs and how far it has been run."""

    slot: int
    inputs: np.ndarray
    done: int = 0
    checkpoints: dict[int, int] = field(default_factory=dict)


def step_of(parts: list[tuple[Story, int, list[tuple[int, int]]]]) -> ops.StepStates:
    """Each story's next `count` rows, with the checkpoints (position, slot) that it writes."""
    counts = [count for _, count, _ in parts]
    row_starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    writes = [
        (segment, row_starts[segment] + position - story.done, slot)
        for segment, (story, _, checkpoints) in enumerate(parts)
        for position, slot in checkpoints
    ]
    columns = np.array(writes, np.int32).reshape(-1, 3)
    return ops.StepStates(
        np.concatenate([np.arange(story.done, story.done + count) for story, count, _ in parts]).astype(np.int32),
        row_starts,
        np.array([story.slot for story, _, _ in parts], np.int32),
        *(np.ascontiguousarray(columns[:, i]) for i in range(3)),
    )


def last_inputs(story: Story, position: int, past: int) -> np.ndarray:
    """The `past` inputs before the position, zeros before the first."""
    padded = np.concatenate([np.zeros((past, story.inputs.shape[1]), np.float32), story.inputs])
    return padded[position : position + past]


def stories(width: int) -> tuple[list[Story], np.random.Generator]:
    numbers = np.random.default_rng(width)
    return [Story(slot, numbers.normal(size=(60, width)).astype(np.float32)) for slot in (2, 0, 1)], numbers


def run_convolution(width: int, steps: list[list[tuple[int, int]]]) -> None:
    """Steps of (story, rows), a checkpoint at every third position; everything is compared with the whole story."""
    told, numbers = stories(CHANNELS)
    pool = np.full((NUM_SLOTS, width - 1, CHANNELS), np.nan, np.float32)
    pool[[story.slot for story in told]] = 0
    free = numbers.permutation(np.arange(LIVE, NUM_SLOTS)).tolist()
    for step in steps:
        parts = []
        for number, count in dict(step).items():
            story = told[number]
            marks = [p for p in range(story.done + 1, min(story.done + count, 60) + 1) if p % 3 == 0 and free]
            new = [(position, free.pop()) for position in marks if free]
            story.checkpoints.update(new)
            if story.done + count <= 60:
                parts.append((story, count, new))
        if not parts:
            continue
        state = ops.ConvState(pool, step_of(parts))
        previous = ops.conv_inputs(state)
        for (story, _, _), found in zip(parts, previous, strict=True):
            np.testing.assert_array_equal(found, last_inputs(story, story.done, width - 1))
        ops.store_conv(state, np.concatenate([s.inputs[s.done : s.done + count] for s, count, _ in parts]))
        for story, count, new in parts:
            story.done += count
            np.testing.assert_array_equal(pool[story.slot], last_inputs(story, story.done, width - 1))
            for position, slot in new:
                np.testing.assert_array_equal(pool[slot], last_inputs(story, position, width - 1))


steps = st.lists(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9)), min_size=1, max_size=3), max_size=12)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(width=st.integers(1, 5), steps=steps)
def test_a_convolution_finds_its_last_inputs_at_every_cut_and_checkpoint(width, steps):
    run_convolution(width, steps)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(steps=steps)
def test_a_recurrent_layer_finds_its_chunks_start_and_the_inputs_since(steps):
    """The state at a multiple of the chunk is, here, the sum of the inputs before it."""
    told, _ = stories(INPUTS)
    pool = np.full((NUM_SLOTS, INPUTS), np.nan, np.float32)
    pool[[story.slot for story in told]] = 0
    buffer = np.full((LIVE, CHUNK, INPUTS), np.nan, np.float32)
    free = list(range(LIVE, NUM_SLOTS))
    for step in steps:
        parts = []
        for number, count in dict(step).items():
            story = told[number]
            if story.done + count <= 60:
                marks = [p for p in range(story.done + 1, story.done + count + 1) if p % CHUNK == 0]
                parts.append((story, count, [(p, free.pop()) for p in marks if free]))
        if not parts:
            continue
        shape = step_of(parts)
        state = ops.RecurrentState(pool, buffer, shape)
        for (story, _, _), start, inputs in zip(parts, ops.chunk_states(state), ops.chunk_inputs(state), strict=True):
            first = story.done // CHUNK * CHUNK
            np.testing.assert_array_equal(start, sum_before(story, first))
            np.testing.assert_array_equal(inputs[: story.done - first], story.inputs[first : story.done])
            assert not inputs[story.done - first :].any()
        rows = np.concatenate([s.inputs[s.done : s.done + count] for s, count, _ in parts])
        ops.store_inputs(state, rows)
        crossed = np.flatnonzero(shape.starts // CHUNK != shape.ends // CHUNK).astype(np.int32)
        if len(crossed):
            new = [sum_before(parts[s][0], int(shape.ends[s]) // CHUNK * CHUNK) for s in crossed]
            ops.store_states(state, crossed, np.stack(new))
        written = [(story, position) for story, _, marks in parts for position, _ in marks]
        if written:
            sums = np.stack([sum_before(story, position) for story, position in written])
            ops.store_checkpoints(state, np.arange(len(written), dtype=np.int32), sums)
        for story, count, marks in parts:
            story.done += count
            for position, slot in marks:
                np.testing.assert_array_equal(pool[slot], sum_before(story, position))


def sum_before(story: Story, position: int) -> np.ndarray:
    return np.asarray(sum(story.inputs[:position], np.zeros(INPUTS, np.float32)))


def test_a_checkpoint_off_the_chunk_is_refused():
    story = Story(0, np.zeros((60, INPUTS), np.float32))
    state = ops.RecurrentState(np.zeros((9, INPUTS)), np.zeros((1, CHUNK, INPUTS)), step_of([(story, 6, [(5, 3)])]))
    with pytest.raises(ShapeError, match=r"checkpoints at \[5\] aren't at multiples of the chunk, 4"):
        ops.store_checkpoints(state, np.array([0], np.int32), np.zeros((1, INPUTS), np.float32))


# Planted defects


def read_rows_of_the_segment_before(patch: pytest.MonkeyPatch) -> None:
    def store(state: ops.ConvState, u: np.ndarray) -> None:
        step, past = state.step, state.pool.shape[1]
        ends = np.concatenate([step.row_starts[1:], step.write_rows])
        rows = ends[:, None] + np.arange(-past, 0)
        state.pool[np.concatenate([step.live, step.write_slots])] = u[np.maximum(rows, 0)]

    patch.setattr(ops, "store_conv", store)


def checkpoint_one_row_late(patch: pytest.MonkeyPatch) -> None:
    store = ops.store_conv

    def late(state: ops.ConvState, u: np.ndarray) -> None:
        step = state.step
        rows = np.minimum(step.write_rows + 1, step.row_starts[step.write_segments + 1]).astype(np.int32)
        moved = ops.StepStates(step.positions, step.row_starts, step.live, step.write_segments, rows, step.write_slots)
        store(ops.ConvState(state.pool, moved), u)

    patch.setattr(ops, "store_conv", late)


@pytest.mark.parametrize(
    "defect", [read_rows_of_the_segment_before, checkpoint_one_row_late], ids=lambda defect: defect.__name__
)
def test_the_property_turns_red_on(defect: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch):
    defect(monkeypatch)
    with pytest.raises(AssertionError):
        run_convolution(4, [[(0, 2), (1, 1)], [(0, 9), (1, 3), (2, 7)], [(1, 1), (2, 1)]])
