"""The gate of a gated MLP."""

from __future__ import annotations

import numpy as np

from zerokl.errors import ShapeError
from zerokl.ops import cpu
from zerokl.ops.device import gpu, on_gpu
from zerokl.ops.kv import F32, check_array


def swiglu(gate_up: F32) -> F32:
    """silu of the first half of each row, times the second half.

    Maths       y[t, i] = silu(x[t, i]) * x[t, F + i],  silu(g) = g / (1 + exp(-g))
    Shapes      x [T, 2F] f32 -> y [T, F] f32
    Rounding    f32: our own exp, 1 + it, the division, the product, once each
    Same bits   for every T, row position, thread count and instruction set
    Free        rows per task (tests/ops/test_swiglu.py)
    Raises      ShapeError, UnsupportedDtype
    Oracle      ops/reference.py: swiglu
    """
    if on_gpu(gate_up):
        return gpu().swiglu(gate_up)  # type: ignore[no-any-return]
    if gate_up.ndim != 2 or gate_up.shape[1] % 2:
        raise ShapeError(f"gate and up must be [T, 2F], not {list(gate_up.shape)}")
    check_array("gate_up", gate_up, np.float32, gate_up.shape)
    return cpu.swiglu(gate_up)
