"""Rotary positions: a table once per step, a rotation per layer."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from zerokl.errors import ShapeError
from zerokl.ops import cpu
from zerokl.ops.device import gpu, on_gpu, only_on_cpu
from zerokl.ops.kv import F32, I32, check_array


def rope_table(positions: I32, inv_freq: NDArray[np.float64], scale: float = 1.0) -> tuple[F32, F32]:
    """Cosines and sines of every position's angles.

    Maths       cos[t, i] = cos(positions[t] * inv_freq[i]) * scale; sin alike
    Shapes      positions [T] i32, inv_freq [R/2] f64 -> (cos, sin) [T, R/2] f32
    Rounding    angle, our own sine and cosine (plain f64 operations, no fma) and * scale in f64; then once to f32
    Same bits   for every T, row position and longest position; on every machine
    Raises      ShapeError, UnsupportedDtype
    Oracle      ops/reference.py: rope_table
    """
    if on_gpu(positions):
        return gpu().rope_table(positions, inv_freq, scale)  # type: ignore[no-any-return]
    check_array("positions", positions, np.int32, (positions.size,))
    check_array("inv_freq", inv_freq, np.float64, (inv_freq.size,))
    return cpu.rope_table(positions, inv_freq, scale)


def rope(x: F32, cos: F32, sin: F32, *, interleaved: bool = False) -> F32:
    """Each head's first R elements, rotated in pairs by the row's angles; the others as they are.

    Maths       y[a] = x[a] cos - x[b] sin,  y[b] = x[b] cos + x[a] sin
                pairs (a, b) = (i, R/2 + i), or (2i, 2i + 1) if interleaved, for i < R/2
    Shapes      x [T, H, D], cos, sin [T, R/2], R <= D -> y [T, H, D], all f32
    Rounding    f32: both products, then their difference or sum, once each
    Same bits   for every T, row position, thread count and instruction set
    Free        rows per task (tests/ops/test_rope.py)
    Raises      ShapeError, UnsupportedDtype
    Oracle      ops/reference.py: rope
    """
    only_on_cpu(x, "rope by itself")
    if x.ndim != 3:
        raise ShapeError(f"x must be [T, H, D], not {list(x.shape)}")
    check_array("x", x, np.float32, x.shape)
    shape = (len(x), cos.shape[-1])
    check_array("cos", cos, np.float32, shape)
    check_array("sin", sin, np.float32, shape)
    if 2 * shape[1] > x.shape[2]:
        raise ShapeError(f"{shape[1]} angles turn {2 * shape[1]} elements, a head has {x.shape[2]}")
    return cpu.rope(x, cos, sin, interleaved)
