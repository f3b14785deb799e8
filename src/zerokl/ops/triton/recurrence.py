"""Recurrences over the tokens of a sequence: a state that stays in registers from a segment's first row to its last.

Maths       `ops.time_steps`, `ops.gated_delta`, `ops.selective_scan`
Shapes      as there; inputs bf16 or f32, states [slots, H, D, W] f32; y bf16
Rounding    f32 as there; y once to bf16
Order       tokens one after the other; the sum over a state's D is a tree over the power of two that holds it, as the
            reduction of one program lays it out
Same bits   for every cut of a sequence into calls, every neighbour and slot
Frozen      COLUMNS and warps: the sum over D depends on them
Oracle      ops/reference_hybrid.py, near it: the order of that sum is another (tests/gpu/test_recurrence.py)

One program per (segment, head, columns of the state), so a long prefill is as slow as its tokens are many.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from zerokl.errors import ShapeError
from zerokl.ops.triton.numbers import EARLY, NARROW, begin, exp, softplus

COLUMNS = 32
WARPS = 4


@triton.jit
def step_rows(raw, bias, log_rate, step, decay, low, high, width, stride, BLOCK: tl.constexpr):
    begin()
    row, head = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = head < width
    x = tl.load(raw + row * stride + head, mask=inside, other=0.0).to(tl.float32)
    x = softplus(x + tl.load(bias + head, mask=inside, other=0.0))
    x = tl.where(low > x, low, x)
    x = tl.where(high < x, high, x)
    rate = exp(tl.load(log_rate + head, mask=inside, other=0.0))
    tl.store(step + row * width + head, x, mask=inside)
    tl.store(decay + row * width + head, exp(-(rate * x)), mask=inside)


@triton.jit
def scan_segments(
    key, value, query, decay, factor, skip, pool, y, row_starts, source, live, write_starts, writes,
    key_stride, value_stride, query_stride, H: tl.constexpr, GROUPS: tl.constexpr, D: tl.constexpr, W: tl.constexpr,
    DEPTH: tl.constexpr, COLUMNS: tl.constexpr, DELTA: tl.constexpr,
):  # fmt: skip
    """DELTA: the gated delta rule (factor: beta); else the selective scan (factor: step, key: b, query: c)."""
    begin()
    segment, head = tl.program_id(0), tl.program_id(1)
    column, depth = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, DEPTH)
    slot = tl.load(live + segment)
    if slot >= 0:
        inside = (depth < D)[:, None] & (column < W)[None, :]
        own = head * D * W + depth[:, None] * W + column[None, :]
        size: tl.constexpr = H * D * W
        from_slot = tl.load(source + segment)
        state = tl.load(pool + from_slot.to(tl.int64) * size + own, mask=inside & (from_slot >= 0), other=0.0)
        group = head // (H // GROUPS)
        start, stop = tl.load(row_starts + segment), tl.load(row_starts + segment + 1)
        write, last = tl.load(write_starts + segment), tl.load(write_starts + segment + 1)
        for row in range(start, stop):
            at = tl.cast(row, tl.int64)
            k = tl.load(key + at * key_stride + group * D + depth, mask=depth < D, other=0.0).to(tl.float32)
            q = tl.load(query + at * query_stride + group * D + depth, mask=depth < D, other=0.0).to(tl.float32)
            v = tl.load(value + at * value_stride + head * W + column, mask=column < W, other=0.0).to(tl.float32)
            times = tl.load(factor + at * H + head).to(tl.float32)
            state = state * tl.load(decay + at * H + head)
            if DELTA:
                change = (v - tl.sum(k[:, None] * state, 0)) * times
            else:
                change = v * times
            state = tl.fma(
                tl.broadcast_to(k[:, None], [DEPTH, COLUMNS]), tl.broadcast_to(change[None, :], [DEPTH, COLUMNS]), state
            )
            shown = tl.sum(q[:, None] * state, 0)
            if not DELTA:
                shown = tl.fma(tl.zeros([COLUMNS], tl.float32) + tl.load(skip + head), v, shown)
            tl.store(y + at * (H * W) + head * W + column, shown.to(y.dtype.element_ty), mask=column < W)
            wanted = tl.load(writes + 2 * write, mask=write < last, other=-1)
            if wanted == row + 1:
                to = tl.load(writes + 2 * write + 1).to(tl.int64)
                tl.store(pool + to * size + own, state, mask=inside)
                write += 1
        tl.store(pool + slot.to(tl.int64) * size + own, state, mask=inside)


def time_steps(raw: Any, bias: Any, log_rate: Any, limits: tuple[float, float]) -> tuple[Any, Any]:
    rows, width = raw.shape
    step, decay = (torch.empty((rows, width), dtype=torch.float32, device=raw.device) for _ in range(2))
    step_rows[(rows,)](
        raw, bias, log_rate, step, decay, *limits, width, raw.stride(0), triton.next_power_of_2(width),
        num_warps=1, **EARLY,
    )  # fmt: skip
    return step, decay


def gated_delta(q: Any, k: Any, v: Any, decay: Any, beta: Any, state: Any) -> Any:
    return scanned(k, v, q, decay, beta, None, state)


def selective_scan(x: Any, b: Any, c: Any, step: Any, decay: Any, skip: Any, state: Any) -> Any:
    return scanned(b, x, c, decay, step, skip, state)


def scanned(key: Any, value: Any, query: Any, decay: Any, factor: Any, skip: Any, state: Any) -> Any:
    """[T, H, W]; the step's checkpoints come in the order of their rows, as `packing` writes them."""
    heads, depth, width = state.pool.shape[1:]
    (rows, groups), step = key.shape[:2], state.step
    if groups < 1 or heads % groups:
        raise ShapeError(f"{heads} heads can't share {groups} evenly")
    y = torch.empty((rows, heads, width), dtype=NARROW, device=value.device)
    scan_segments[(len(step.live), heads, triton.cdiv(width, COLUMNS))](
        key, value, query, decay, factor, decay if skip is None else skip, state.pool, y, step.row_starts, step.source,
        step.live, step.write_starts, step.writes, key.stride(0), value.stride(0), query.stride(0), heads, groups,
        depth, width, triton.next_power_of_2(depth), COLUMNS, skip is None, num_warps=WARPS, **EARLY,
    )  # fmt: skip
    return y
