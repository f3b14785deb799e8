"""Gates and factors: what happens to single elements between linear layers."""

from __future__ import annotations

from typing import Literal

import numpy as np

from zerokl import _native
from zerokl.errors import ShapeError
from zerokl.ops.device import gpu, on_gpu
from zerokl.ops.kv import F32, check_array

Activation = Literal["identity", "sigmoid", "silu"]


def gated(x: F32, gate: F32, activation: Activation = "identity") -> F32:
    """x times an activation of the gate.

    Maths       y = x * f(g): f is g, 1 / (1 + exp(-g)) or g / (1 + exp(-g))
    Shapes      x, gate [T, N] -> y [T, N], all f32
    Rounding    f32: our own exp, 1 + it, the division, the product, once each
    Same bits   for every T, row position, thread count and instruction set
    Free        elements per task (tests/ops/test_gate.py)
    Raises      ShapeError, UnsupportedDtype
    Oracle      ops/reference_hybrid.py: gated
    """
    if on_gpu(x):
        return gpu().gated(x, gate, activation)  # type: ignore[no-any-return]
    check_rows("x", x)
    check_array("gate", gate, np.float32, x.shape)
    out = np.empty(x.shape, np.float32)
    _native.gated(x, gate, activation, out)
    return out


def sigmoid(x: F32) -> F32:
    """1 / (1 + exp(-x)), element by element, in f32 on the GPU too: `gated` of ones. Raises what that raises."""
    return gpu().sigmoid_of(x) if on_gpu(x) else gated(np.ones_like(x), x, "sigmoid")


def geglu(gate_up: F32) -> F32:
    """gelu, in its tanh form, of the first half of each row, times the second half.

    Maths       y[t, i] = gelu(x[t, i]) * x[t, F + i], gelu(g) = g / 2 * (1 + tanh(sqrt(2 / pi) * (g + 0.044715 g³)))
    Shapes      x [T, 2F] f32 -> y [T, F] f32
    Rounding    f32: c = f32(sqrt(2 / pi)); u = fma(g * g * g, f32(0.044715 c), g * c); (g * 0.5) * (1 + tanh(u)) * up;
                tanh is attention's
    Same bits   for every T, row position, thread count and instruction set
    Free        rows per task (tests/ops/test_gate.py)
    Raises      ShapeError, UnsupportedDtype
    Oracle      ops/reference_hybrid.py: geglu
    """
    if on_gpu(gate_up):
        return gpu().geglu(gate_up)  # type: ignore[no-any-return]
    check_rows("gate_up", gate_up)
    if gate_up.shape[1] % 2:
        raise ShapeError(f"gate and up must be [T, 2F], not {list(gate_up.shape)}")
    out = np.empty((len(gate_up), gate_up.shape[1] // 2), np.float32)
    _native.geglu(gate_up, out)
    return out


def gelu(x: F32) -> F32:
    """gelu in its tanh form, element by element: `geglu` without the second half.

    Maths       y = gelu(x)
    Shapes      x [T, N] -> y [T, N], all f32
    Rounding    that of `geglu`: (x * 0.5) * (1 + tanh(u))
    Same bits   for every T, row position, thread count and instruction set
    Raises      ShapeError, UnsupportedDtype
    Oracle      ops/reference_hybrid.py: gelu
    """
    if on_gpu(x):
        return gpu().gelu(x)  # type: ignore[no-any-return]
    check_rows("x", x)
    out = np.empty(x.shape, np.float32)
    _native.gelu(x, out)
    return out


def scale(x: F32, factor: float | F32, *, residual: F32 | None = None) -> F32:
    """Every row times its factor, then + residual.

    Maths       y[t, i] = x[t, i] * factor[t], or * factor; + residual[t, i]
    Shapes      x, residual [T, N], factor [T] or a number (rounded to f32) -> y [T, N], all f32
    Rounding    the product and the sum, once each: a factor of 1 leaves a plain sum; GPU: x may be bf16, and so is y
                then, but a residual's own memory takes the sum, as in `linear`
    Same bits   for every T, row position, thread count and instruction set
    Raises      ShapeError, UnsupportedDtype
    Oracle      ops/reference_hybrid.py: scale
    """
    if on_gpu(x):
        return gpu().scale(x, factor, residual)  # type: ignore[no-any-return]
    check_rows("x", x)
    factors = np.full(len(x), factor, np.float32) if isinstance(factor, float | int) else factor
    check_array("factor", factors, np.float32, (len(x),))
    if residual is not None:
        check_array("residual", residual, np.float32, x.shape)
    out = np.empty(x.shape, np.float32)
    _native.scale(x, factors, residual, out)
    return out


def softcap(x: F32, cap: float) -> F32:
    """Squeezed into (-cap, cap).

    Maths       y = tanh(x / cap) * cap
    Shapes      x [T, N] -> y [T, N], all f32
    Rounding    f32: x / f32(cap), attention's tanh, * f32(cap), once each
    Same bits   for every T, row position, thread count and instruction set
    Raises      ShapeError, UnsupportedDtype
    Oracle      ops/reference_hybrid.py: softcap
    """
    if on_gpu(x):
        return gpu().softcap(x, cap)  # type: ignore[no-any-return]
    check_rows("x", x)
    out = np.empty(x.shape, np.float32)
    _native.softcap(x, cap, out)
    return out


def check_rows(name: str, x: F32) -> None:
    """Any number of rows of any width."""
    if x.ndim != 2:
        raise ShapeError(f"{name} must be [T, N], not {list(x.shape)}")
    check_array(name, x, np.float32, x.shape)
