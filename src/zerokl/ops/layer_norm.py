"""Layer normalisation."""

from __future__ import annotations

import numpy as np

from zerokl import _native
from zerokl.errors import ShapeError
from zerokl.ops.device import gpu, on_gpu
from zerokl.ops.kv import F32, check_array


def layer_norm(x: F32, weight: F32, bias: F32, eps: float) -> F32:
    """Rows less their mean, divided by their standard deviation, times the weight, plus the bias.

    Maths       y = (x - mean) * (1 / sqrt(mean((x - mean)²) + eps)) * w + b
    Shapes      x [T, E], w, b [E] -> y [T, E], all f32
    Rounding    f32: sum / f32(E), d = x - it; sum of squares of d / f32(E), + f32(eps), square root, 1 / it, d * that,
                once each; then fma(that, w, b)
    Order       both sums: lane j of 16 takes i = j mod 16 from +0, i increasing, by addition and by fma; then the tree
                (i, i+8), (i, i+4), (i, i+2), (0, 1)
    Same bits   for every number of rows, row position, thread count and instruction set
    Free        rows per task (tests/ops/test_layer_norm.py)
    Frozen      16 lanes and their tree
    Raises      ShapeError, UnsupportedDtype
    Oracle      ops/reference.py: layer_norm
    """
    if on_gpu(x):
        return gpu().layer_norm(x, weight, bias, eps)  # type: ignore[no-any-return]
    width = weight.size
    check_array("weight", weight, np.float32, (width,))
    check_array("bias", bias, np.float32, (width,))
    if x.ndim != 2:
        raise ShapeError(f"x must be [T, {width}], not {list(x.shape)}")
    check_array("x", x, np.float32, (len(x), width))
    out = np.empty(x.shape, np.float32)
    _native.layer_norm(x, weight, bias, eps, out)
    return out
