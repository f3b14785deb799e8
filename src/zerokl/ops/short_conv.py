"""Causal convolutions of a few taps."""

from __future__ import annotations

import numpy as np

from zerokl import _native
from zerokl.ops.device import gpu, on_gpu
from zerokl.ops.gate import Activation, check_rows
from zerokl.ops.kv import F32, I32, check_array
from zerokl.ops.state import ConvState, conv_inputs, store_conv


def convolved(
    u: F32,
    taps: F32,
    state: ConvState,
    *,
    bias: F32 | None = None,
    activation: Activation = "identity",
    residual: bool = False,
) -> F32:
    """`short_conv` of a step's rows behind what their sequences' states hold; then the states hold the last inputs.

    Rounding    that of `short_conv`; GPU: inputs once to bf16, wherever they come from, and the result likewise
    Same bits, raises: those of `conv_inputs`, `short_conv`, `store_conv`
    """
    if on_gpu(u):
        return gpu().convolved(u, taps, state, bias, activation, residual)  # type: ignore[no-any-return]
    previous, starts = conv_inputs(state), state.step.row_starts
    y = short_conv(u, taps, previous, starts, bias=bias, activation=activation, residual=residual)
    store_conv(state, u)
    return y


def short_conv(
    u: F32,
    taps: F32,
    previous: F32,
    row_starts: I32,
    *,
    bias: F32 | None = None,
    activation: Activation = "identity",
    residual: bool = False,
) -> F32:
    """Each channel's last `width` inputs by its taps, then + bias, activation, + the input itself if `residual`.

    Maths       y[t, c] = f(sum_j taps[j, c] * u[t - width + 1 + j, c] + bias[c]) + u[t, c]
    Shapes      u [T, C], taps [width, C] (oldest first), previous [S, width - 1, C]: the inputs before each segment's
                first row, as `conv_inputs` gives them -> y [T, C], all f32
    Rounding    f32: once per fma, bias, activation (as `gated`'s) and residual
    Order       acc = fma(taps[j, c], u, acc) from +0, oldest first
    Same bits   for every cut of a sequence into calls, every neighbour, thread count and instruction set
    Free        rows per task (tests/ops/test_short_conv.py)
    Raises      ShapeError, UnsupportedDtype; EngineError for segments that aren't the rows
    Oracle      ops/reference_hybrid.py: short_conv
    """
    check_rows("u", u)
    width, channels = len(taps), u.shape[1]
    check_array("taps", taps, np.float32, (width, channels))
    check_array("row_starts", row_starts, np.int32, (row_starts.size,))
    check_array("previous", previous, np.float32, (len(row_starts) - 1, width - 1, channels))
    if bias is not None:
        check_array("bias", bias, np.float32, (channels,))
    out = np.empty(u.shape, np.float32)
    if not channels:
        return out  # of a rank that has no heads
    _native.short_conv(u, taps, bias, previous, row_starts, activation, residual, out)
    return out
