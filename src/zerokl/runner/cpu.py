"""The CPU runner: one ragged step through the model at once, lag 0."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from zerokl import ops
from zerokl.errors import EngineError, UnsupportedModel
from zerokl.models import Model
from zerokl.runner.batch import ragged_tokens, window_ragged
from zerokl.runner.host import HostPools
from zerokl.runner.known_answers import verify_known_answers
from zerokl.runner.known_answers_sm90 import verify_gpu_answers
from zerokl.runner.kv import KvPools
from zerokl.runner.recorded import recorded
from zerokl.runner.state import StatePools, step_states
from zerokl.runner.wanted import Wanted, answers, wanted_rows
from zerokl.types import Pools, Segment, StatePool, StepPlan, StepResult, WindowPool

LOGITS_BYTES = 64 * 2**20
"""Logits that exist at a time: 340 rows of SmolLM2's 49,152 ids, 130 of Llama 3's 128,256. Free."""


class Done(Struct, frozen=True):
    """A step that needs no waiting."""

    answer: StepResult

    def result(self) -> StepResult:
        return self.answer


class CpuRunner:
    """Runs plans on the CPU, and owns the KV pools. A `types.StepRunner`."""

    lag = 0

    def __init__(
        self,
        model: Model,
        num_pages: int,
        page_size: int,
        *,
        windows: Sequence[WindowPool] = (),
        states: StatePool | None = None,
        host: Pools | None = None,
        fill: float | None = None,
        slice_rows: int | None = None,
        processed: bool = False,
    ) -> None:
        """`windows`, `states`, `host`: as in `types.Pools`; `fill`: what unwritten slots hold (tests: NaN);
        `slice_rows`: rows of logits at a time; `processed`: logprobs of the sampler's own distribution.

        Raises EngineError if this machine's operations don't give the known bits, UnsupportedModel for one that
        doesn't have its numerics.
        """
        verify_known_answers()
        if model.numerics == "sm90":
            verify_gpu_answers()
        self.model, self.num_pages, self.page_size = model, num_pages, page_size
        self.pools = KvPools(model, num_pages, page_size, windows, fill=fill)
        self.windows = [pool.window for pool in windows]
        self.window_pools, self.state_pool = tuple(windows), states
        self.states = StatePools(model.memory, states, fill=fill) if states else None
        self.host = HostPools(model, host, self.pools, self.states, fill=fill) if host else None
        self.recorded = recorded(model, self.pools)
        if model.numerics != "cpu" and not self.recorded:
            raise UnsupportedModel(f"--cpu-numerics {model.numerics} isn't there for {model.architecture}")
        self.processed = processed
        self.slice_rows = slice_rows or max(1, LOGITS_BYTES // (4 * model.vocab_size))

    def submit(self, plan: StepPlan) -> Done:
        """Run the plan's segments. Raises EngineError for a plan that can't be run."""
        ran = self._run(plan, self.processed)
        if ran is None:
            return Done(StepResult(plan.step, ()))
        head = self.recorded or self.model
        results = answers(head.logits_of, *ran, len(plan.segments), self.slice_rows)
        return Done(StepResult(plan.step, tuple(results)))

    def follow(self, plan: StepPlan) -> None:
        """Another rank's part of the same step: rank 0 gets its logits, and draws."""
        ran = self._run(plan, False)
        if ran is not None:
            parts, wanted = ran
            for first in range(0, len(wanted.rows), self.slice_rows):
                rows = wanted.rows[first : first + self.slice_rows]
                self.model.logits_of(*(part[rows] for part in parts))

    def _run(self, plan: StepPlan, processed: bool) -> tuple[Sequence[np.ndarray], Wanted] | None:
        """What rows are made of and which of them are wanted; None for a step without tokens."""
        if plan.copies and not self.host:
            raise EngineError(f"step {plan.step} copies to or from a host tier that isn't there")
        if self.host:
            self.host.run(plan.copies)
        if not plan.segments:
            return None
        tokens, ragged = ragged_tokens(plan.segments, self.page_size)
        if tokens.min() < 0:
            raise EngineError(f"step {plan.step} names a token that is still pending, but this runner has no lag")
        wanted = wanted_rows(plan.segments, ragged.row_starts, processed)
        if self.recorded:
            return self.recorded.rows(tokens, ragged), wanted
        return self.model.rows(tokens, ragged, self._layers(plan.segments, ragged)), wanted

    def _layers(
        self, segments: Sequence[Segment], ragged: ops.Ragged
    ) -> Sequence[ops.LayerKV] | Sequence[ops.LayerCache]:
        """What each layer remembers, for one step; states that segments start from are in place."""
        shapes: dict[int | None, ops.Ragged] = {
            window: window_ragged(segments, kind, ragged) for kind, window in enumerate(self.windows)
        }
        layers = self.pools.layers(ragged, shapes)
        if not self.model.declares_memory:
            return layers
        states: Sequence[tuple[ops.ConvState | ops.RecurrentState, ...]] = [()] * self.model.num_layers
        if self.states:
            step = step_states(segments, ragged)
            self.states.begin(segments, step.live)
            states = self.states.layers(step)
        keys = iter(layers)
        return [
            ops.LayerCache(next(keys) if memory.keys else None, own)
            for memory, own in zip(self.model.memory, states, strict=True)
        ]
