"""Recurrences over the tokens of a sequence: the gated delta rule, and Mamba-2's selective state space.

Their chunk is one token. A token's output and the state after it are one function of the state before it and of the
token's own inputs, so a prefill of a thousand tokens and a thousand decodes are the same arithmetic. (Formulas for
longer chunks sum in another order, and would have to be recomputed from the chunk's start at every decoded token.)
"""

from __future__ import annotations

from math import inf

import numpy as np
from numpy.typing import NDArray

from zerokl import _native
from zerokl.errors import ShapeError
from zerokl.ops.device import gpu, on_gpu
from zerokl.ops.gate import check_rows
from zerokl.ops.kv import F32, check_array
from zerokl.ops.state import RecurrentState, StepStates, chunk_states, store_checkpoints, store_states


def time_steps(raw: F32, bias: F32, log_rate: F32, limits: tuple[float, float] = (0.0, inf)) -> tuple[F32, F32]:
    """How far each head's clock moves with a token, and what its state keeps of itself.

    Maths       step = min(max(softplus(raw + bias), low), high), decay = exp(-exp(log_rate) * step)
    Shapes      raw [T, H], bias, log_rate [H] -> (step, decay) [T, H], all f32
    Rounding    f32: raw + bias; softplus(x) = max(x, 0) + (log2(w) * f32(ln 2) + (e - (w - 1)) / w) with e = exp(-|x|),
                w = 1 + e; exp(log_rate) * step; our own exp: each operation once
    Same bits   for every T, row position and instruction set
    Raises      ShapeError, UnsupportedDtype
    Oracle      ops/reference_hybrid.py: time_steps
    """
    if on_gpu(raw):
        return gpu().time_steps(raw, bias, log_rate, limits)  # type: ignore[no-any-return]
    check_rows("raw", raw)
    for name, array in (("bias", bias), ("log_rate", log_rate)):
        check_array(name, array, np.float32, raw.shape[1:])
    step, decay = np.empty(raw.shape, np.float32), np.empty(raw.shape, np.float32)
    _native.time_steps(raw, bias, log_rate, limits, step, decay)
    return step, decay


def gated_delta(q: F32, k: F32, v: F32, decay: F32, beta: F32, state: RecurrentState) -> F32:
    """The gated delta rule: a state that forgets, then corrects what it knows of a key. Reads and stores the states.

    Maths       S *= decay; S += k (v - S' k) beta; y = S' q, per head; S [keys, values]
    Shapes      q, k [T, G, D], v [T, H, W] (G key heads, H a multiple of G), decay, beta [T, H]; states [H, D, W]
                -> y [T, H, W], all f32
    Rounding    f32: S * decay; (v - known) * beta; fma(k, that, S); once each
    Order       known and y are chains of fma over the keys' D from +0; tokens one after the other
    Same bits   for every cut of a sequence into calls, every neighbour, thread count and instruction set
    Free        columns per vector, heads per task (tests/ops/test_recurrence.py)
    Raises      ShapeError, UnsupportedDtype
    Oracle      ops/reference_hybrid.py: gated_delta
    """
    if on_gpu(q):
        return gpu().gated_delta(q, k, v, decay, beta, state)  # type: ignore[no-any-return]
    heads, depth, width = state.pool.shape[1:]
    rows, groups = len(q), q.shape[1]
    check_array("q", q, np.float32, (rows, groups, depth))
    check_array("k", k, np.float32, (rows, groups, depth))
    check_array("v", v, np.float32, (rows, heads, width))
    check_array("decay", decay, np.float32, (rows, heads))
    check_array("beta", beta, np.float32, (rows, heads))
    check_shares(heads, groups)
    states, wanted, saved = before(state)
    out = np.empty((rows, heads, width), np.float32)
    _native.gated_delta(q, k, v, decay, beta, state.step.row_starts, states, pairs(state.step, wanted), saved, out)
    after(state, states, wanted, saved)
    return out


def selective_scan(x: F32, b: F32, c: F32, step: F32, decay: F32, skip: F32, state: RecurrentState) -> F32:
    """Mamba-2: a state that forgets and takes in x along b, seen along c. Reads and stores the states.

    Maths       S = S * decay + b (step * x); y = c' S + skip * x, per head; S [N, W]
    Shapes      x [T, H, W], b, c [T, G, N] (H a multiple of G), step, decay [T, H], skip [H]; states [H, N, W]
                -> y [T, H, W], all f32
    Rounding    f32: x * step; S * decay; fma(b, x * step, that); fma(skip, x, y); once each
    Order       y is a chain of fma over N from +0; tokens one after the other
    Same bits   for every cut of a sequence into calls, every neighbour, thread count and instruction set
    Free        columns per vector, heads per task (tests/ops/test_recurrence.py)
    Raises      ShapeError, UnsupportedDtype
    Oracle      ops/reference_hybrid.py: selective_scan
    """
    if on_gpu(x):
        return gpu().selective_scan(x, b, c, step, decay, skip, state)  # type: ignore[no-any-return]
    heads, depth, width = state.pool.shape[1:]
    rows, groups = len(x), b.shape[1]
    check_array("x", x, np.float32, (rows, heads, width))
    check_array("b", b, np.float32, (rows, groups, depth))
    check_array("c", c, np.float32, (rows, groups, depth))
    check_array("step", step, np.float32, (rows, heads))
    check_array("decay", decay, np.float32, (rows, heads))
    check_array("skip", skip, np.float32, (heads,))
    check_shares(heads, groups)
    states, wanted, saved = before(state)
    out = np.empty((rows, heads, width), np.float32)
    row_starts, pairs_ = state.step.row_starts, pairs(state.step, wanted)
    _native.selective_scan(x, b, c, step, decay, skip, row_starts, states, pairs_, saved, out)
    after(state, states, wanted, saved)
    return out


def check_shares(heads: int, groups: int) -> None:
    if groups < 1 or heads % groups:
        raise ShapeError(f"{heads} heads can't share {groups} evenly")


Order = NDArray[np.int32]
"""Numbers of the step's checkpoints, by rising row."""


def before(state: RecurrentState) -> tuple[F32, Order, F32]:
    """(states to go on from, the step's checkpoints, room for their states)."""
    if state.chunk != 1:
        raise ShapeError(f"this recurrence has chunks of 1 token, not of {state.chunk}")
    wanted = np.argsort(state.step.write_rows, kind="stable").astype(np.int32)
    return chunk_states(state), wanted, np.empty((len(wanted), *state.pool.shape[1:]), np.float32)


def pairs(step: StepStates, wanted: Order) -> list[tuple[int, int]]:
    """(segment, row) of each checkpoint."""
    return list(zip(step.write_segments[wanted].tolist(), step.write_rows[wanted].tolist(), strict=True))


def after(state: RecurrentState, states: F32, wanted: Order, saved: F32) -> None:
    store_states(state, np.arange(len(states), dtype=np.int32), states)
    if len(wanted):
        store_checkpoints(state, wanted, saved)
