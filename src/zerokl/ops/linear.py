"""Linear layers: where almost all time goes, and where most engines lose their bits."""

from __future__ import annotations

import numpy as np

from zerokl.errors import ShapeError
from zerokl.ops import cpu
from zerokl.ops.device import gpu, on_gpu
from zerokl.ops.kv import F32, check_array
from zerokl.ops.matrix import host
from zerokl.ops.rms_norm import rms_norm
from zerokl.ops.shards import AnyMatrix, InputShard, VocabularyShard

Norm = tuple[F32, float]
"""Weights, epsilon."""


def linear(
    x: F32,
    weight: AnyMatrix,
    *,
    bias: F32 | None = None,
    residual: F32 | None = None,
    wide: bool = False,
    norm: Norm | None = None,
) -> F32:
    """x times the transposed weight, then + bias, then + residual; x first by `rms_norm`, if there is a norm.

    Maths       y[t, n] = (sum_k x[t, k] w[n, k]) + bias[n] + residual[t, n]
    Shapes      x [T, K], w [N, K], bias [N], residual [T, N] -> y [T, N]; all f32 but the weight, which widens exactly
    Rounding    f32, once per fma and once per addition; on the GPU then to bf16, unless `wide` or added to a residual
    Order       one accumulator per output from +0: acc = fma(x[t, k], w[n, k], acc) for k = 0 .. K-1
                a weight packed in leaves: one for each leaf of K; leaves are added by a balanced binary tree over a
                power of two of places, (0, 1), (2, 3), ..., an empty place passing its sibling through
                a weight's shard: the same, whoever has which leaves
    Same bits   for every T, row position, thread count and instruction set, and for equal numbers in any weight format
    Free        register block, tile, depth of a K block, split over threads (tests/ops/test_linear.py)
    Frozen      the chain, and where the weight's leaves end, because they cut it
    Raises      ShapeError, UnsupportedDtype
    Oracle      ops/reference.py: linear
    GPU         x is bf16, a residual f32: its own memory takes the sum, unrounded
    """
    if norm is not None and (isinstance(weight, InputShard | VocabularyShard) or not on_gpu(x)):
        x = rms_norm(x, *norm)
    if isinstance(weight, InputShard):
        return weight.linear(x, bias, residual, wide)
    if isinstance(weight, VocabularyShard):
        return weight.linear(x, bias, residual)
    if on_gpu(x):
        return gpu().linear(x, weight, bias, residual, wide, norm)  # type: ignore[no-any-return]
    outputs, depth = weight.shape
    rows = len(x) if x.ndim == 2 else 0
    check_array("x", x, np.float32, (rows, depth))
    if bias is not None:
        check_array("bias", bias, np.float32, (outputs,))
    if residual is not None:
        check_array("residual", residual, np.float32, (rows, outputs))
    return cpu.linear(x, host(weight), bias, residual)


def gated_linear(x: F32, weight: AnyMatrix, *, bias: F32 | None = None, norm: Norm | None = None) -> F32:
    """swiglu(linear(x, weight, bias=bias, norm=norm)), gate rows first: one operation, nothing is stored between.

    Shapes      x [T, K], w [2F, K], bias [2F] -> y [T, F]
    Rounding, order, bits: those of the two. What they raise, this raises.
    """
    if on_gpu(x):
        return gpu().gated_linear(x, weight, bias, norm)  # type: ignore[no-any-return]
    if norm is not None:
        x = rms_norm(x, *norm)
    outputs, depth = weight.shape
    if outputs % 2:
        raise ShapeError(f"gate and up must be [2F, K], not {list(weight.shape)}")
    check_array("x", x, np.float32, (len(x) if x.ndim == 2 else 0, depth))
    if bias is not None:
        check_array("bias", bias, np.float32, (outputs,))
    return cpu.gated_linear(x, host(weight), bias)
