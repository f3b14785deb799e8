"""Mixtures of experts: which MLPs a token goes through, and what comes out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from zerokl import _native
from zerokl.errors import ShapeError
from zerokl.ops.device import gpu, on_gpu
from zerokl.ops.gate import check_rows
from zerokl.ops.kv import F32, I32, check_array
from zerokl.ops.matrix import DeviceExperts, LeafExperts
from zerokl.ops.shards import AnyMatrix, InputShard, own_part


def route(
    logits: F32,
    top: int,
    *,
    scores: Literal["softmax", "sigmoid"] = "softmax",
    normalised: bool = True,
    shared: int = 0,
    bias: F32 | None = None,
    scale: float = 1.0,
) -> tuple[I32, F32]:
    """The `top` experts of each row with their weights, then the weights of the `shared` ones, whose logits are last.

    Maths       softmax: the largest logits (+ bias); weight = exp(l) / sum of exp over all E, or over the chosen
                sigmoid: the largest sigmoid(l) + bias; weight = sigmoid(l) / sum of sigmoid over chosen and shared
                all weights times `scale`; the bias only chooses
    Shapes      logits [T, E + shared], bias [E] -> experts [T, top] i32, weights [T, top + shared]
    Rounding    softmax: exp2((l - max) * f32(log2 e)), the sum, the division, * f32(scale), once each; sigmoid:
                1 / (1 + exp(-l)) to choose; weights from s = -softplus(-l) as exp2((s - max s) * f32(log2 e))
    Order       experts by falling score, equal ones by rising id. Sum over all E: 16 lanes by id mod 16 and the tree;
                over the chosen: in that order, then the shared
    Same bits   for every T, row position, thread count and instruction set; a row looks at no other
    Raises      ShapeError, UnsupportedDtype
    Oracle      ops/reference_hybrid.py: route
    """
    if on_gpu(logits):
        return gpu().route(logits, top, scores, normalised, shared, bias, scale)  # type: ignore[no-any-return]
    check_rows("logits", logits)
    routed = logits.shape[1] - shared
    if not 1 <= top <= routed:
        raise ShapeError(f"{top} experts of {routed}")
    if scores == "softmax" and shared:
        raise ShapeError("a softmax knows no shared experts")
    if bias is not None:
        check_array("bias", bias, np.float32, (routed,))
    experts = np.empty((len(logits), top), np.int32)
    weights = np.empty((len(logits), top + shared), np.float32)
    _native.route(logits, scores, normalised, top, shared, bias, scale, experts, weights)
    return experts, weights


def experts(
    x: F32,
    gate_up: Sequence[AnyMatrix] | DeviceExperts | LeafExperts,
    down: Sequence[AnyMatrix] | DeviceExperts | LeafExperts | InputShard,
    chosen: I32,
    weights: F32,
    *,
    residual: F32 | None = None,
) -> F32:
    """The weighted sum of each token's gated MLPs, then + residual.

    Maths       y[t] = sum_s weights[t, s] * down_e(swiglu(gate_up_e(x[t]))) + residual[t], e = chosen[t, s]
    Shapes      x [T, E], per expert gate_up [2F, E] (gate first) and down [E, F], chosen, weights [T, top] -> y [T, E]
    Rounding    `linear`, `swiglu`, `linear`; then once per fma and once for the residual, all f32
    Order       acc = fma(weights[t, s], answer, acc) from +0, s as given; where `down` has leaves of F, so for each
                leaf, the answer being its chain, and the leaves by the tree of `linear`
    Same bits   for every T, row position, thread count and instruction set, whoever else goes to the expert: nothing
                has a capacity, and nothing is dropped
    Free        tokens per block, rows of an expert that are computed side by side (tests/ops/test_moe.py)
    Raises      ShapeError, UnsupportedDtype; EngineError for an expert that isn't there
    Oracle      ops/reference_hybrid.py: experts
    """
    if isinstance(down, InputShard) and on_gpu(x):
        return gpu().experts_of_ranks(x, gate_up, down, chosen, weights, residual)  # type: ignore[no-any-return]
    if isinstance(gate_up, DeviceExperts | LeafExperts) or isinstance(down, DeviceExperts | LeafExperts | InputShard):
        return gpu().experts(x, gate_up, down, chosen, weights, residual)  # type: ignore[no-any-return]
    check_rows("x", x)
    if not gate_up or len(gate_up) != len(down):
        raise ShapeError(f"{len(gate_up)} first matrices of experts, {len(down)} second ones")
    width, hidden = x.shape[1], down[0].shape[1]
    for one, two in zip(gate_up, down, strict=True):
        if one.shape != (2 * hidden, width) or two.shape != (width, hidden):
            raise ShapeError(f"experts of shapes {one.shape} and {two.shape} for rows of {width}")
    check_array("chosen", chosen, np.int32, (len(x), chosen.shape[-1]))
    check_array("weights", weights, np.float32, chosen.shape)
    if residual is not None:
        check_array("residual", residual, np.float32, x.shape)
    first, shard = [own_part(one) for one in gate_up], down[0]
    second = [own_part(one) for one in down]
    out = np.empty(x.shape, np.float32)
    if not isinstance(shard, InputShard):
        _native.experts(x, first, second, chosen, weights, residual, out)
        return out
    if not shard.is_empty:
        _native.experts(x, first, second, chosen, weights, None, out)
    part = None if shard.is_empty else out
    return shard.group.fold(part, (len(x), width), shard.count, None, residual)  # type: ignore[no-any-return]
