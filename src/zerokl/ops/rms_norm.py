"""Root mean square normalisation."""

from __future__ import annotations

import numpy as np

from zerokl.ops import cpu
from zerokl.ops.device import gpu, on_gpu
from zerokl.ops.kv import F32, check_array


def rms_norm(x: F32, weight: F32, eps: float, *, wide: bool = False) -> F32:
    """Rows over the last axis, divided by their root mean square, times the weight.

    Maths       y = x * (1 / sqrt(mean(x²) + eps)) * w
    Shapes      x [..., E], w [E] -> y [..., E], all f32
    Rounding    f32: sum, mean = sum / f32(E), + f32(eps), square root, 1 / it, x * that, * w, once each
    Order       lane j of 16 sums x[i]² over i = j mod 16 by fma from +0, i increasing; then the tree (i, i+8),
                (i, i+4), (i, i+2), (0, 1)
    Same bits   for every number of rows, row position, thread count and instruction set
    Free        rows per task (tests/ops/test_rms_norm.py)
    Frozen      16 lanes and their tree
    Raises      ShapeError, UnsupportedDtype
    Oracle      ops/reference.py: rms_norm
    GPU         the result is bf16, unless `wide`: f32, where a residual stream begins with it
    """
    if on_gpu(x):
        return gpu().rms_norm(x, weight, eps, wide)  # type: ignore[no-any-return]
    width = weight.size
    check_array("weight", weight, np.float32, (width,))
    check_array("x", x, np.float32, (*x.shape[:-1], width))
    return cpu.rms_norm(x, weight, eps)
