"""The state slots on the CPU: where they lie, and how a segment's state gets into its live slot.

live slots 0 .. num_live - 1                     checkpoints num_live .. num_slots - 1
one per running request, states and inputs       states only: they are at multiples of every layer's chunk
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from zerokl import ops
from zerokl.errors import EngineError
from zerokl.models.memory import Conv, LayerMemory, Recurrent, StateSpec
from zerokl.runner.kv import lazy_array
from zerokl.types import ZERO_STATE, Segment, StatePool, StateUse


class StateArrays(Struct, frozen=True):
    """One state of one layer. `inputs`: what a recurrent layer keeps of an unfinished chunk."""

    pool: np.ndarray
    inputs: np.ndarray | None = None

    def view(self, step: ops.StepStates) -> ops.ConvState | ops.RecurrentState:
        if self.inputs is None:
            return ops.ConvState(self.pool, step)
        return ops.RecurrentState(self.pool, self.inputs, step)


class StatePools:
    """Every slot of every state. Layers write to it through `ops/state.py` only."""

    def __init__(self, memory: Sequence[LayerMemory], pool: StatePool, *, fill: float | None = None) -> None:
        """`fill`: what unwritten slots hold (tests: NaN).

        Raises EngineError if the interval isn't on the grid of every chunk.
        """
        for spec in (spec for layer in memory for spec in layer.states):
            if isinstance(spec, Recurrent) and pool.interval % spec.chunk:
                raise EngineError(
                    f"checkpoints every {pool.interval} tokens can't hold a state of chunks of {spec.chunk}"
                )
        self.arrays = [[allocated(spec, pool, fill) for spec in layer.states] for layer in memory]

    def begin(self, segments: Sequence[Segment], live: np.ndarray) -> None:
        """Puts what each segment starts from into its live slot: nothing to do if it is there already."""
        moves = [(int(slot), use.source) for slot, use in zip(live, map(state_use, segments), strict=True)]
        for slot, source in moves:
            if source != slot:
                for arrays in (arrays for layer in self.arrays for arrays in layer):
                    arrays.pool[slot] = 0 if source == ZERO_STATE else arrays.pool[source]

    def layers(self, step: ops.StepStates) -> list[tuple[ops.ConvState | ops.RecurrentState, ...]]:
        """Each layer's states, in the order in which its model declares them."""
        return [tuple(arrays.view(step) for arrays in layer) for layer in self.arrays]


def step_states(segments: Sequence[Segment], ragged: ops.Ragged) -> ops.StepStates:
    """The step's shape for states. Raises EngineError for a checkpoint outside its segment or a wrong source."""
    live, writes = [], []
    for number, segment in enumerate(segments):
        use, first_row = state_use(segment), int(ragged.row_starts[number])
        live.append(use.live)
        for position, slot in use.checkpoints:
            if not segment.start < position <= segment.start + len(segment.tokens):
                raise EngineError(f"request {segment.request_id}: a checkpoint at {position}, outside its segment")
            writes.append((number, first_row + position - segment.start, slot))
    columns = np.array(writes, np.int32).reshape(-1, 3)
    return ops.StepStates(
        ragged.positions,
        ragged.row_starts,
        np.array(live, np.int32),
        *(np.ascontiguousarray(columns[:, column]) for column in range(3)),
    )


def state_use(segment: Segment) -> StateUse:
    """The segment's; an error if it has none, or starts from nothing in the middle or from something at 0."""
    use = segment.state
    if use is None or (use.source == ZERO_STATE) != (segment.start == 0):
        raise EngineError(f"request {segment.request_id} at {segment.start} can't start from state {use}")
    return use


def allocated(spec: StateSpec, pool: StatePool, fill: float | None) -> StateArrays:
    if isinstance(spec, Conv):
        return StateArrays(filled((pool.num_slots, spec.width - 1, spec.channels), fill))
    return StateArrays(
        filled((pool.num_slots, *spec.shape), fill), filled((pool.num_live, spec.chunk, spec.inputs), fill)
    )


def filled(shape: tuple[int, ...], fill: float | None) -> np.ndarray:
    array = lazy_array(shape)
    if fill is not None:
        array.fill(fill)
    return array
