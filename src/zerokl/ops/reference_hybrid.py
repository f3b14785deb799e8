"""The executable oracle of the operations that hybrid models add: as `reference.py`, slow and obvious."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import inf
from typing import Any

import numpy as np

from zerokl.ops.kv import F32, I32
from zerokl.ops.reference import linear, swiglu, tree
from zerokl.ops.reference_numbers import LN_2, LOG2_E, exp, exp2, f32, fma, lane_sum, log2, tanh


@np.errstate(all="ignore")
def gated(x: F32, gate: F32, activation: str = "identity") -> Any:
    return x * activated(gate, activation)


def activated(gate: F32, activation: str) -> Any:
    match activation:
        case "sigmoid":
            return f32(1) / (f32(1) + exp(-gate))
        case "silu":
            return gate / (f32(1) + exp(-gate))
    return gate


@np.errstate(all="ignore")
def geglu(gate_up: F32) -> Any:
    g, up = np.split(gate_up, 2, axis=-1)
    return gelu(g) * up


@np.errstate(all="ignore")
def gelu(g: F32) -> Any:
    inside = fma(g * g * g, f32(0.044715 * np.sqrt(2 / np.pi)), g * f32(np.sqrt(2 / np.pi)))
    return g * f32(0.5) * (f32(1) + tanh(inside))


@np.errstate(all="ignore")
def scale(x: F32, factor: float | F32, *, residual: F32 | None = None) -> Any:
    y = x * np.broadcast_to(f32(factor), len(x))[:, None]
    return y if residual is None else y + residual


@np.errstate(all="ignore")
def softcap(x: F32, cap: float) -> Any:
    return tanh(x / f32(cap)) * f32(cap)


@np.errstate(all="ignore")
def softplus(x: Any) -> Any:
    e = exp(-np.abs(x))
    w = f32(1) + e
    return np.where(x < 0, f32(0), x) + (log2(w) * LN_2 + (e - (w - f32(1))) / w)


def route(
    logits: F32,
    top: int,
    *,
    scores: str = "softmax",
    normalised: bool = True,
    shared: int = 0,
    bias: F32 | None = None,
    scale: float = 1.0,
) -> tuple[I32, F32]:
    rows = [route_row(row, top, scores, normalised, shared, bias) for row in logits]
    experts = np.array([ids for ids, _ in rows], np.int32).reshape(len(logits), top)
    weights = np.array([weights for _, weights in rows], np.float32).reshape(len(logits), top + shared)
    return experts, weights * f32(scale)


def route_row(
    logits: F32, top: int, scores: str, normalised: bool, shared: int, bias: F32 | None
) -> tuple[list[int], list[Any]]:
    routed = logits[: len(logits) - shared]
    key = routed if scores == "softmax" else activated(routed, "sigmoid")
    ids = np.lexsort((np.arange(len(key)), -(key if bias is None else key + bias)))[:top].tolist()
    if scores == "softmax":
        powers = exp2((logits - logits.max()) * LOG2_E)
        weights = [powers[i] for i in ids]
        total = in_order(weights) if normalised else lane_sum(powers)
    else:
        logs = -softplus(-np.concatenate([logits[ids], logits[len(routed) :]]))
        weights = list(exp2((logs - logs.max()) * LOG2_E))
        total = in_order(weights)
    return ids, [weight / total for weight in weights]


def in_order(values: Sequence[Any]) -> Any:
    total = f32(0)
    for value in values:
        total = total + value
    return total


def experts(
    x: F32,
    gate_up: Sequence[F32],
    down: Sequence[F32],
    chosen: I32,
    weights: F32,
    *,
    residual: F32 | None = None,
    leaves: Sequence[int] = (),
) -> Any:
    ends = [*leaves] or [down[0].shape[1]]
    sums = [np.zeros_like(x) for _ in ends]
    for token in range(len(x)):
        for expert, weight in zip(chosen[token], weights[token], strict=True):
            hidden = swiglu(linear(x[token : token + 1], gate_up[expert]))
            for y, (start, end) in zip(sums, pairwise([0, *ends]), strict=True):
                answer = linear(hidden[:, start:end], down[expert][:, start:end])
                y[token] = fma(weight, answer[0], y[token])
    whole = tree(sums)
    return whole if residual is None else whole + residual


@np.errstate(all="ignore")
def short_conv(
    u: F32,
    taps: F32,
    previous: F32,
    row_starts: I32,
    *,
    bias: F32 | None = None,
    activation: str = "identity",
    residual: bool = False,
) -> F32:
    y = np.empty_like(u)
    for segment, before in enumerate(previous):
        start, end = row_starts[segment : segment + 2]
        inputs = np.concatenate([before, u[start:end]])
        for row in range(start, end):
            total = np.zeros(u.shape[1], np.float32)
            for tap, weight in enumerate(taps):
                total = fma(weight, inputs[row - start + tap], total)
            total = activated(total if bias is None else total + bias, activation)
            y[row] = total + u[row] if residual else total
    return y


@np.errstate(all="ignore")
def time_steps(raw: F32, bias: F32, log_rate: F32, limits: tuple[float, float] = (0.0, inf)) -> tuple[Any, Any]:
    step = np.minimum(np.maximum(softplus(raw + bias), f32(limits[0])), f32(limits[1]))
    return step, exp(-(exp(log_rate) * step))


@np.errstate(all="ignore")
def gated_delta(q: F32, k: F32, v: F32, decay: F32, beta: F32, states: F32) -> tuple[F32, list[F32]]:
    """One sequence from `states` [H, D, W]: (y, the states after each token)."""
    share = v.shape[1] // q.shape[1]
    q, k = q.repeat(share, axis=1), k.repeat(share, axis=1)
    y, after = np.empty_like(v), []
    for t in range(len(v)):
        states = states * decay[t, :, None, None]
        delta = (v[t] - chain(k[t], states)) * beta[t, :, None]
        states = fma(k[t, :, :, None], delta[:, None, :], states)
        y[t] = chain(q[t], states)
        after.append(states)
    return y, after


@np.errstate(all="ignore")
def selective_scan(x: F32, b: F32, c: F32, step: F32, decay: F32, skip: F32, states: F32) -> tuple[F32, list[F32]]:
    """One sequence from `states` [H, N, W]: (y, the states after each token)."""
    share = x.shape[1] // b.shape[1]
    b, c = b.repeat(share, axis=1), c.repeat(share, axis=1)
    y, after = np.empty_like(x), []
    for t in range(len(x)):
        weighted = x[t] * step[t, :, None]
        states = fma(b[t, :, :, None], weighted[:, None, :], states * decay[t, :, None, None])
        y[t] = fma(skip[:, None], x[t], chain(c[t], states))
        after.append(states)
    return y, after


def chain(along: F32, states: F32) -> Any:
    """sum_d along[h, d] * states[h, d, :], by fma from +0."""
    total = np.zeros((states.shape[0], states.shape[2]), np.float32)
    for d in range(along.shape[1]):
        total = fma(along[:, d, None], states[:, d], total)
    return total
