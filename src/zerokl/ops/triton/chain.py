"""The chain: a matrix product whose every output walks k in order with one float32 accumulator.

Maths       y[t, n] = round(chain over k of x[t, k] w[n, k], + bias[n]); or, unrounded, residual[t, n] += that
            scaled: the chain times, or through, factor[n]; by blocks: acc = fma(scale, chain of 128 k from +0, acc)
            gated: y[t, n] = swiglu(round(chain(w[n])), round(chain(w[F + n]))), w [2F, K]
Shapes      x [T, K] bf16, w [N, K] bf16, bias [N] f32 -> y [T, N] bf16 or f32; residual [T, N] f32, in its place
Rounding    fp32 accumulator and additions; once, to y's type; gated: both sums to x's type first
Order       the matrix unit's k-steps, k increasing, from +0; no split of K, no atomics
Same bits   for every T and row position, and for every schedule
Free        the whole schedule: tile, k-step of the loop, operands swapped, warps, stages (admit.py)
Frozen      the chain
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from zerokl.ops.choices import Schedule
from zerokl.ops.triton.numbers import EXACT, begin
from zerokl.ops.triton.swiglu import gate

TIMES, THROUGH, BY_BLOCKS = 1, 2, 3
"""What a packed weight's factors do (0: there are none)."""


@triton.jit(do_not_specialize=["num_rows"])
def chain(
    x, w, factors, bias, y, num_rows, N, K,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, SWAPPED: tl.constexpr, EVEN: tl.constexpr,
    GATED: tl.constexpr, BIASED: tl.constexpr, ADDED: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    depth = tl.arange(0, DEPTH)
    # Rows and columns beyond the end read number 0 and are not stored.
    from_column, from_row = tl.where(column < N, column, 0), tl.where(row < num_rows, row, 0)
    at_w = w + from_column.to(tl.int64)[:, None] * K + depth[None, :]
    at_x = x + from_row.to(tl.int64)[:, None] * K + depth[None, :]
    begin()
    shape: tl.constexpr = [COLUMNS, ROWS] if SWAPPED else [ROWS, COLUMNS]
    acc = tl.zeros(shape, tl.float32)
    up = tl.zeros(shape, tl.float32)
    for k in tl.range(0, K, DEPTH):
        if EVEN:
            wt = tl.load(at_w + k, eviction_policy="evict_first")
            xt = tl.load(at_x + k, eviction_policy="evict_last")
        else:
            there = (k + depth)[None, :] < K
            wt = tl.load(at_w + k, mask=there, other=0.0)
            xt = tl.load(at_x + k, mask=there, other=0.0)
        if SCALED == 3:
            acc = one_block(acc, xt, wt, factors + from_column // 16 * tl.cdiv(K, 128) + k // 128, SWAPPED)
        else:
            acc = tl.dot(wt, xt.T, acc) if SWAPPED else tl.dot(xt, wt.T, acc)
        if GATED:
            if EVEN:
                ut = tl.load(at_w + N.to(tl.int64) * K + k, eviction_policy="evict_first")
            else:
                ut = tl.load(at_w + N.to(tl.int64) * K + k, mask=(k + depth)[None, :] < K, other=0.0)
            if SCALED == 3:
                at_scale = factors + (N + from_column) // 16 * tl.cdiv(K, 128) + k // 128
                up = one_block(up, xt, ut, at_scale, SWAPPED)
            else:
                up = tl.dot(ut, xt.T, up) if SWAPPED else tl.dot(xt, ut.T, up)
    if SWAPPED:
        acc, up = acc.T, up.T
    inside = (row < num_rows)[:, None] & (column < N)[None, :]
    at_y = row.to(tl.int64)[:, None] * N + column[None, :]
    if SCALED == 1 or SCALED == 2:
        acc = scaled(acc, tl.load(factors + from_column), SCALED)
        if GATED:
            up = scaled(up, tl.load(factors + N + from_column), SCALED)
    if BIASED:
        acc += tl.load(bias + from_column)[None, :]
        if GATED:
            up += tl.load(bias + N + from_column)[None, :]
    if GATED:
        acc = gate(acc.to(x.dtype.element_ty).to(tl.float32), up.to(x.dtype.element_ty).to(tl.float32))
    if ADDED:
        acc += tl.load(y + at_y, mask=inside, other=0.0)
    tl.store(y + at_y, acc.to(y.dtype.element_ty), mask=inside)


@triton.jit
def one_block(acc, xt, wt, at_scale, SWAPPED: tl.constexpr):
    """acc = fma(scale, the block's own chain, acc)."""
    scale = tl.load(at_scale)
    part = tl.dot(wt, xt.T) if SWAPPED else tl.dot(xt, wt.T)
    by = tl.broadcast_to(scale[:, None] if SWAPPED else scale[None, :], acc.shape)
    return tl.fma(by, part, acc)


@triton.jit
def scaled(acc, factors, SCALED: tl.constexpr):
    by = tl.broadcast_to(factors[None, :], acc.shape)
    return acc * by if SCALED == 1 else tl.div_rn(acc, by)


def run_chain(
    x: Any, w: Any, y: Any, schedule: Schedule, bias: Any = None, added: bool = False, gated: bool = False,
    factors: Any = None, mode: int = 0,
) -> Any:  # fmt: skip
    """Fill y, or add to it; `w` and `y` are tensors, y's width says how many columns there are.

    `factors`: of a packed weight whose numbers w has; `mode` says what they do.
    """
    rows, depth = x.shape
    columns = y.shape[1]
    wide = max(schedule.columns // 2, 16) if gated else schedule.columns
    chain[(triton.cdiv(columns, wide), triton.cdiv(rows, schedule.rows))](
        x, w, factors, bias, y, rows, columns, depth, schedule.rows, wide, schedule.depth, schedule.swapped,
        depth % schedule.depth == 0, gated, bias is not None, added, mode,
        num_warps=schedule.warps, num_stages=schedule.stages, **EXACT,
    )  # fmt: skip
    return y


def empty(x: Any, columns: int, dtype: Any = None) -> Any:
    return torch.empty((len(x), columns), dtype=dtype or x.dtype, device=x.device)
