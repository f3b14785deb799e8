"""Rows of a weight, by id."""

from __future__ import annotations

import numpy as np

from zerokl.ops import cpu
from zerokl.ops.device import gpu, on_gpu
from zerokl.ops.kv import F32, I32, check_array
from zerokl.ops.matrix import host
from zerokl.ops.shards import AnyMatrix, VocabularyShard


def embedding(weight: AnyMatrix, ids: I32) -> F32:
    """The rows of `weight` that `ids` name, as f32.

    Maths       y[t, k] = w[ids[t], k]
    Shapes      w [N, K], ids [T] i32 -> y [T, K] f32
    Rounding    none: f16 and bf16 widen exactly
    Same bits   always: nothing is combined
    Raises      ShapeError, UnsupportedDtype; EngineError for an id outside the matrix
    Oracle      ops/reference.py: embedding
    """
    if isinstance(weight, VocabularyShard):
        if not on_gpu(ids):
            check_array("ids", ids, np.int32, (ids.size,))
        return weight.embedding(ids)
    if on_gpu(ids):
        return gpu().embedding(weight, ids)  # type: ignore[no-any-return]
    check_array("ids", ids, np.int32, (ids.size,))
    return cpu.embedding(host(weight), ids)
