"""Short convolutions: outputs and states in one launch.

Maths       `ops.short_conv` of the rows behind what the segment's source slot holds (zeros for none), and `store_conv`
Shapes      u [T, C] bf16 or f32, taps [W, C] f32, pool [slots, W - 1, C] bf16 -> y [T, C] bf16
Rounding    u to bf16, once, whether it comes from the rows or from the pool; fp32 as `ops.short_conv`; y once to bf16
Same bits   for every cut of a sequence into calls, every neighbour and slot
Free        rows and channels per program
NaN         rows in no segment (padding) read nothing and write nothing
Oracle      ops/reference_hybrid.py: short_conv, bit for bit in float32 (tests/gpu/test_convolution.py)

    rows 0 .. W - 2 of a segment, and its slots    one program per segment: all that sees the pool, so that nobody reads
                                                   a slot that somebody else has written
    the others                                     programs of some rows
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from zerokl.ops.triton.elementwise import ACTIVATIONS, activated
from zerokl.ops.triton.numbers import EARLY, NARROW, begin

BLOCK = 256


@triton.jit
def ended(acc, u, bias, channel, inside, BIASED: tl.constexpr, HOW: tl.constexpr, RESIDUAL: tl.constexpr):
    """What follows the chain over the taps."""
    if BIASED:
        acc = acc + tl.load(bias + channel, mask=inside, other=0.0)
    acc = activated(acc, HOW)
    if RESIDUAL:
        acc = acc + u
    return acc


@triton.jit
def convolve(
    u, taps, bias, pool, y, segment_of_row, row_starts, source, live, write_starts, writes,
    num_rows, channels, stride, row_programs, WIDTH: tl.constexpr, PAST: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr, BIASED: tl.constexpr, HOW: tl.constexpr, RESIDUAL: tl.constexpr,
):  # fmt: skip
    begin()
    program = tl.program_id(0)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < channels
    if program < row_programs:
        convolve_rows(
            u, taps, bias, pool, y, segment_of_row, row_starts, program, channel, inside, num_rows, channels, stride,
            WIDTH, ROWS, BLOCK, BIASED, HOW, RESIDUAL,
        )  # fmt: skip
    else:
        convolve_segment(
            u, taps, bias, pool, y, row_starts, source, live, write_starts, writes, program - row_programs, channel,
            inside, channels, stride, WIDTH, PAST, BLOCK, BIASED, HOW, RESIDUAL,
        )  # fmt: skip


@triton.jit
def convolve_rows(
    u, taps, bias, pool, y, segment_of_row, row_starts, program, channel, inside, num_rows, channels, stride,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, BIASED: tl.constexpr, HOW: tl.constexpr,
    RESIDUAL: tl.constexpr,
):  # fmt: skip
    """Rows whose past lies in this step."""
    kind = pool.dtype.element_ty
    row = program * ROWS + tl.arange(0, ROWS)
    segment = tl.load(segment_of_row + row, mask=row < num_rows, other=-1)
    first = tl.load(row_starts + tl.maximum(segment, 0))
    there = (segment >= 0) & (row - first >= WIDTH - 1)
    if tl.max(there.to(tl.int32), 0) > 0:
        both = there[:, None] & inside[None, :]
        acc = tl.zeros([ROWS, BLOCK], tl.float32)
        own = acc
        for tap in tl.static_range(WIDTH):
            at = (row + (tap - WIDTH + 1)).to(tl.int64)[:, None] * stride + channel[None, :]
            own = tl.load(u + at, mask=both, other=0.0).to(kind).to(tl.float32)
            weight = tl.load(taps + tap * channels + channel, mask=inside, other=0.0)
            acc = tl.fma(tl.broadcast_to(weight[None, :], [ROWS, BLOCK]), own, acc)
        acc = ended(acc, own, bias, channel, inside, BIASED, HOW, RESIDUAL)
        tl.store(y + row.to(tl.int64)[:, None] * channels + channel[None, :], acc.to(y.dtype.element_ty), mask=both)


@triton.jit
def input_at(u, pool, from_slot, start, place, channel, inside, channels, stride, PAST: tl.constexpr):
    """What came `place` rows after the segment's first; before it: what its source slot holds."""
    past = (from_slot * PAST + PAST + place).to(tl.int64) * channels + channel
    old = tl.load(pool + past, mask=inside & (place < 0) & (from_slot >= 0), other=0.0)
    new = tl.load(u + (start + place).to(tl.int64) * stride + channel, mask=inside & (place >= 0), other=0.0)
    return tl.where(place < 0, old.to(tl.float32), new.to(pool.dtype.element_ty).to(tl.float32))


@triton.jit
def convolve_segment(
    u, taps, bias, pool, y, row_starts, source, live, write_starts, writes, segment, channel, inside, channels, stride,
    WIDTH: tl.constexpr, PAST: tl.constexpr, BLOCK: tl.constexpr, BIASED: tl.constexpr, HOW: tl.constexpr,
    RESIDUAL: tl.constexpr,
):  # fmt: skip
    """A segment's first rows, its checkpoints, and its live slot last of all."""
    slot = tl.load(live + segment)
    if slot >= 0:
        from_slot = tl.load(source + segment)
        start, stop = tl.load(row_starts + segment), tl.load(row_starts + segment + 1)
        for offset in tl.static_range(WIDTH - 1):
            if start + offset < stop:
                acc = tl.zeros([BLOCK], tl.float32)
                own = acc
                for tap in tl.static_range(WIDTH):
                    before = tl.zeros([BLOCK], tl.int32) + (offset + tap - WIDTH + 1)
                    own = input_at(u, pool, from_slot, start, before, channel, inside, channels, stride, WIDTH - 1)
                    weight = tl.load(taps + tap * channels + channel, mask=inside, other=0.0)
                    acc = tl.fma(weight, own, acc)
                acc = ended(acc, own, bias, channel, inside, BIASED, HOW, RESIDUAL)
                at = (start + offset).to(tl.int64) * channels + channel
                tl.store(y + at, acc.to(y.dtype.element_ty), mask=inside)
        age = tl.arange(0, PAST)[:, None]
        wanted = inside[None, :] & (age < WIDTH - 1)
        for number in range(tl.load(write_starts + segment), tl.load(write_starts + segment + 1)):
            place = tl.load(writes + 2 * number) - start - (WIDTH - 1) + age
            kept = input_at(u, pool, from_slot, start, place, channel[None, :], wanted, channels, stride, WIDTH - 1)
            to = tl.load(writes + 2 * number + 1) * (WIDTH - 1) + age
            tl.store(pool + to.to(tl.int64) * channels + channel[None, :], kept.to(pool.dtype.element_ty), mask=wanted)
        last = stop - start - (WIDTH - 1) + age
        latest = input_at(u, pool, from_slot, start, last, channel[None, :], wanted, channels, stride, WIDTH - 1)
        tl.debug_barrier()  # the slot's old inputs have been read
        at = (slot * (WIDTH - 1) + age).to(tl.int64) * channels + channel[None, :]
        tl.store(pool + at, latest.to(pool.dtype.element_ty), mask=wanted)


def convolved(u: Any, taps: Any, state: Any, bias: Any, activation: str, residual: bool) -> Any:
    """y [T, C]; the state's slots hold the last inputs."""
    (rows, channels), width, step = u.shape, len(taps), state.step
    y = torch.empty((rows, channels), dtype=NARROW, device=u.device)
    block = min(BLOCK, triton.next_power_of_2(channels))
    per_program = 16 if rows >= 512 else 4
    row_programs = triton.cdiv(rows, per_program)
    convolve[(row_programs + len(step.live), triton.cdiv(channels, block))](
        u, taps, taps if bias is None else bias, state.pool, y, step.segment_of_row, step.row_starts, step.source,
        step.live, step.write_starts, step.writes, rows, channels, u.stride(0), row_programs, width,
        max(1, triton.next_power_of_2(width - 1)), per_program, block, bias is not None, ACTIVATIONS[activation],
        residual, num_warps=4, **EARLY,
    )  # fmt: skip
    return y
