"""A model as two tapes: what a step stores and computes for all its rows, and logits of those that somebody wants."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from zerokl import ops
from zerokl.models import Model
from zerokl.ops.tape import NO_STEP, NO_TOKENS, Tape, record
from zerokl.runner.kv import KvPools


class Recorded:
    """Does what a `Model` does, over the arrays of the pools that it was recorded with."""

    def __init__(self, body: Tape, head: Tape) -> None:
        self._body, self._head = body, head

    def rows(self, tokens: np.ndarray, ragged: ops.Ragged) -> Sequence[np.ndarray]:
        """As `Model.rows`; good until the next step."""
        return self._body.run(tokens, ragged)

    def logits_of(self, *rows: np.ndarray) -> np.ndarray:
        """As `Model.logits_of`; good until the next call."""
        return self._head.run(NO_TOKENS, NO_STEP, *rows)[0]

    def take_times(self) -> dict[str, tuple[int, float]]:
        """As `Tape.take_times`; the head's operations apart."""
        head = {f"head: {kind}": found for kind, found in self._head.take_times().items()}
        return self._body.take_times() | head


def recorded(model: Model, pools: KvPools) -> Recorded | None:
    """None for a model that a tape can't hold: it is run operation by operation."""
    if model.declares_memory or model.team.size > 1:
        return None
    layers = pools.layers(NO_STEP)
    body = record(layers, (), lambda tokens, ragged, named: model.rows(tokens, ragged, named), model.numerics)
    if body is None:
        return None
    head = record((), body.widths, lambda tokens, ragged, named, *rows: model.logits_of(*rows), model.numerics)
    return Recorded(body, head) if head else None
