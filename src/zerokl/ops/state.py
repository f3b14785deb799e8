"""States of sequences as one layer sees them: plain copies in and out of slots, and no rounding.

    rows of segment s     row_starts[s] ......... a checkpoint: (s, row, slot) ......... row_starts[s + 1]
    its state             ^ pool[live[s]]         ^ to pool[slot]                        ^ to pool[live[s]]

The runner puts what a segment starts from into its live slot before the model runs, so a layer never meets a slot that
isn't its sequence's. Read before you store: a segment's live slot is both.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct

from zerokl.errors import ShapeError
from zerokl.ops.kv import F32, I32, LayerKV, check_array


class StepStates(Struct, frozen=True):
    """The shape of one step, for states; T rows of S segments and N checkpoints to write. All int32."""

    positions: I32
    """[T]: absolute positions."""
    row_starts: I32
    """[S + 1]."""
    live: I32
    """[S]: the slot that holds the segment's state, before and after."""
    write_segments: I32
    """[N]."""
    write_rows: I32
    """[N]: the checkpoint is the state before this row of the step, row_starts[s] < row <= row_starts[s + 1]."""
    write_slots: I32
    """[N]."""

    @property
    def starts(self) -> I32:
        """[S]: each segment's first position."""
        return self.positions[self.row_starts[:-1]]

    @property
    def ends(self) -> I32:
        """[S]: the position after each segment's last."""
        return self.positions[self.row_starts[1:] - 1] + np.int32(1)

    @property
    def segment_of_row(self) -> I32:
        """[T]."""
        counts = np.diff(self.row_starts)
        return np.repeat(np.arange(len(counts), dtype=np.int32), counts)


class DeviceStates(Struct, frozen=True):
    """The same on the GPU, in the step's buffer: int32 tensors, with room for more segments and checkpoints."""

    segment_of_row: Any
    """[T]: -1 for padding."""
    row_starts: Any
    """[S + 1]."""
    source: Any
    """[S]: the slot that a segment starts from; -1: zeros. Read by whoever reads, so that no copy comes first."""
    live: Any
    """[S]: -1 for a segment that isn't there."""
    write_starts: Any
    """[S + 1]: where each segment's checkpoints begin among the writes."""
    writes: Any
    """[N, 2]: (row, slot)."""


class ConvState(Struct, frozen=True):
    """The last inputs of one short convolution: pool [slots, width - 1, channels], oldest first; bf16 on the GPU."""

    pool: F32
    step: Any
    """StepStates, or DeviceStates."""


class RecurrentState(Struct, frozen=True):
    """One recurrent layer: pool [slots, *shape] of states at multiples of the chunk, and the inputs since.

    inputs [live slots, chunk, I]: row position % chunk of the chunk that isn't full yet.
    """

    pool: F32
    inputs: F32
    step: Any
    """StepStates, or DeviceStates."""

    @property
    def chunk(self) -> int:
        return int(self.inputs.shape[1])


class LayerCache(Struct, frozen=True):
    """All that one layer remembers, in the order in which its model declares it."""

    keys: LayerKV | None
    states: tuple[ConvState | RecurrentState, ...] = ()


def conv_inputs(state: ConvState) -> F32:
    """[S, width - 1, channels]: what came before each segment's first row, oldest first; zeros before position 0."""
    return state.pool[state.step.live]  # type: ignore[no-any-return]


def store_conv(state: ConvState, u: F32) -> None:
    """Puts the last width - 1 inputs, as of each segment's end and of each checkpoint, into their slots.

    u [T, channels]: this step's inputs. Raises ShapeError, UnsupportedDtype.
    """
    step, past = state.step, state.pool.shape[1]
    check_array("u", u, np.float32, (len(step.positions), state.pool.shape[2]))
    if not past:
        return
    segments = np.concatenate([np.arange(len(step.live), dtype=np.int32), step.write_segments])
    ends = np.concatenate([step.row_starts[1:], step.write_rows])
    rows = ends[:, None] + np.arange(-past, 0, dtype=np.int32)
    before = rows - step.row_starts[segments][:, None]
    latest = u[np.maximum(rows, 0)]
    earlier = before < 0
    latest[earlier] = state.pool[step.live[np.repeat(segments, past)[earlier.ravel()]], before[earlier] + past]
    state.pool[np.concatenate([step.live, step.write_slots])] = latest


def chunk_states(state: RecurrentState) -> F32:
    """[S, *shape]: the state at the last multiple of the chunk at or before each segment's start."""
    return state.pool[state.step.live]  # type: ignore[no-any-return]


def chunk_inputs(state: RecurrentState) -> F32:
    """[S, chunk, I]: the inputs between that multiple and the segment's start; zeros from row start % chunk on."""
    inputs = state.inputs[state.step.live]
    offsets = np.arange(state.chunk, dtype=np.int32)
    inputs[offsets >= (state.step.starts % state.chunk)[:, None]] = 0
    return inputs  # type: ignore[no-any-return]


def store_states(state: RecurrentState, segments: I32, states: F32) -> None:
    """The states [n, *shape] of n segments at the last multiple of the chunk at or before their ends.

    Only a segment that has crossed a multiple needs this.
    """
    state.pool[state.step.live[segments]] = states


def store_checkpoints(state: RecurrentState, writes: I32, states: F32) -> None:
    """The states [n, *shape] of n of the step's checkpoints, which are at multiples of the chunk."""
    ends = state.step.positions[state.step.write_rows[writes] - 1] + 1
    if (ends % state.chunk).any():
        raise ShapeError(f"checkpoints at {ends.tolist()} aren't at multiples of the chunk, {state.chunk}")
    state.pool[state.step.write_slots[writes]] = states


def store_inputs(state: RecurrentState, x: F32) -> None:
    """The rows of x [T, I] that belong to their segment's unfinished last chunk go to its live slot."""
    step = state.step
    check_array("x", x, np.float32, (len(step.positions), state.inputs.shape[2]))
    segments = step.segment_of_row
    kept = np.flatnonzero(step.positions >= (step.ends // state.chunk * state.chunk)[segments])
    state.inputs[step.live[segments[kept]], step.positions[kept] % state.chunk] = x[kept]
