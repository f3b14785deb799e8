"""Rotary positions: the step's table, and one kernel from the fused projection to turned queries and the cache.

Table       cos, sin of positions[t] * inv_freq[i]: `math.rs` sin_cos in plain float64, so the CPU's bits. It is
            made on the device for the step's positions; nothing depends on how long a context may be
Maths       q and k of each head: normalised first where there is a weight (x * rstd * w over the head), then
            y[a] = x[a] cos - x[b] sin, y[b] = x[b] cos + x[a] sin for the pairs (i, R/2 + i); the rest of a head,
            where R < D, and v as they are.
            The values' slots of a new page that nobody has filled yet are zeroed
Shapes      qkv [T, (H + 2K) D] bf16 -> q [T, H, D] bf16; k, v go to the pools [P, K, 64, D] at the row's slot
Rounding    fp32 from the projection to the one rounding to bf16
Same bits   for every T, row position, slot
Frozen      8 heads per program and 4 warps: the norm's reduction depends on them
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl

from zerokl.errors import ShapeError
from zerokl.ops.triton import attention_rows as rows
from zerokl.ops.triton.numbers import EARLY, INTERPRETED, begin

HEADS = 8
MANY_ROWS = 512
"""From here on one program does a row's every head: fewer, longer programs. Free."""


@triton.jit
def turn_table(positions, inv_freq, cos, sin, scale, num_angles, BLOCK: tl.constexpr):
    begin()
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < num_angles
    x = tl.load(positions + row).to(tl.float64) * tl.load(inv_freq + column, mask=inside, other=0.0)
    shifted = x * 0.6366197723675814 + 6755399441055744.0
    quarter = shifted - 6755399441055744.0
    r = x - quarter * 1.570796012878418
    r = r - quarter * 3.139164164167596e-7
    r = r - quarter * 6.223371969669989e-14
    r = r - quarter * 2.0222662487959506e-21
    q = r * r
    s = 0.0 * q + (1.0 / 355687428096000.0)
    s = s * q + (-1.0 / 1307674368000.0)
    s = s * q + (1.0 / 6227020800.0)
    s = s * q + (-1.0 / 39916800.0)
    s = s * q + (1.0 / 362880.0)
    s = s * q + (-1.0 / 5040.0)
    s = s * q + (1.0 / 120.0)
    s = s * q + (-1.0 / 6.0)
    c = 0.0 * q + (-1.0 / 6402373705728000.0)
    c = c * q + (1.0 / 20922789888000.0)
    c = c * q + (-1.0 / 87178291200.0)
    c = c * q + (1.0 / 479001600.0)
    c = c * q + (-1.0 / 3628800.0)
    c = c * q + (1.0 / 40320.0)
    c = c * q + (-1.0 / 720.0)
    c = c * q + (1.0 / 24.0)
    c = c * q + (-1.0 / 2.0)
    s, c = r + r * q * s, 1.0 + q * c
    turns = shifted.to(tl.int64, bitcast=True) & 3
    odd = (turns & 1) == 1
    sine, cosine = tl.where(odd, c, s), tl.where(odd, s, c)
    sine = tl.where(turns >= 2, -sine, sine)
    cosine = tl.where((turns == 1) | (turns == 2), -cosine, cosine)
    tl.store(cos + row * num_angles + column, (cosine * scale).to(tl.float32), mask=inside)
    tl.store(sin + row * num_angles + column, (sine * scale).to(tl.float32), mask=inside)


@triton.jit
def turn_and_store(
    qkv, cos, sin, q_weight, k_weight, q, pool_k, pool_v, slots, eps, k_scale, v_scale,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, HEADS: tl.constexpr, GROUPS: tl.constexpr, NORMED: tl.constexpr,
):  # fmt: skip
    """One program per (row, GROUPS groups of heads)."""
    begin()
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row)
    for number in tl.static_range(GROUPS):
        turn_group(
            qkv, cos, sin, q_weight, k_weight, q, pool_k, pool_v, row, slot, tl.program_id(1) * GROUPS + number, eps,
            k_scale, v_scale, H, K, D, HEADS, NORMED,
        )  # fmt: skip
    first_value = H + K - tl.program_id(1) * GROUPS * HEADS
    # A padding row must not reach the loads of the second condition.
    if (slot >= 0) & (first_value < GROUPS * HEADS):  # noqa: SIM102
        if is_last_of_new_page(slots, row, slot, tl.num_programs(0)):
            for group in range(GROUPS):
                zero_rest_of_page(pool_v, slot, group * HEADS - first_value, K, D, HEADS)


@triton.jit
def turn_group(
    qkv, cos, sin, q_weight, k_weight, q, pool_k, pool_v, row, slot, group, eps, k_scale, v_scale,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, HEADS: tl.constexpr, NORMED: tl.constexpr,
):  # fmt: skip
    """HEADS heads of a row: queries to q, keys and values to the row's slot."""
    HALF: tl.constexpr = D // 2
    head = group * HEADS + tl.arange(0, HEADS)
    pair = tl.arange(0, HALF)
    is_query, is_key, there = head < H, (head >= H) & (head < H + K), head < H + 2 * K
    at = (row * (H + 2 * K) + head)[:, None] * D + pair[None, :]
    a = tl.load(qkv + at, mask=there[:, None], other=0.0).to(tl.float32)
    b = tl.load(qkv + at + HALF, mask=there[:, None], other=0.0).to(tl.float32)
    c, s = tl.load(cos + row * HALF + pair)[None, :], tl.load(sin + row * HALF + pair)[None, :]
    turned = (is_query | is_key)[:, None]
    x, z = a, b
    if NORMED:
        mean = tl.div_rn(tl.sum(a * a, 1) + tl.sum(b * b, 1), tl.zeros([HEADS], tl.float32) + D * 1.0)
        factor = tl.div_rn(tl.zeros([HEADS], tl.float32) + 1.0, tl.sqrt_rn(mean + eps))[:, None]
        low = tl.where(is_query[:, None], tl.load(q_weight + pair)[None, :], tl.load(k_weight + pair)[None, :])
        high = tl.where(
            is_query[:, None], tl.load(q_weight + HALF + pair)[None, :], tl.load(k_weight + HALF + pair)[None, :]
        )
        x, z = a * factor * low, b * factor * high
    first = tl.where(turned, x * c - z * s, a)
    second = tl.where(turned, z * c + x * s, b)
    kind = q.dtype.element_ty
    at_q = (row * H + head)[:, None] * D + pair[None, :]
    tl.store(q + at_q, first.to(kind), mask=is_query[:, None])
    tl.store(q + at_q + HALF, second.to(kind), mask=is_query[:, None])
    page, offset = (slot // 64).to(tl.int64), slot % 64
    key_head = tl.where(is_key, head - H, head - H - K)
    at_pool = ((page * K + key_head) * 64 + offset)[:, None] * D + pair[None, :]
    stored = slot >= 0
    to_k, to_v = (is_key & stored)[:, None], ((head >= H + K) & there & stored)[:, None]
    tl.store(pool_k + at_pool, kept(first, k_scale, pool_k.dtype.element_ty), mask=to_k)
    tl.store(pool_k + at_pool + HALF, kept(second, k_scale, pool_k.dtype.element_ty), mask=to_k)
    tl.store(pool_v + at_pool, kept(first, v_scale, pool_v.dtype.element_ty), mask=to_v)
    tl.store(pool_v + at_pool + HALF, kept(second, v_scale, pool_v.dtype.element_ty), mask=to_v)


@triton.jit
def kept(x, scale, KIND: tl.constexpr):
    """As a pool keeps it: rounded once; to e4m3, what is left when it is divided by the scale, 448 at most."""
    if KIND == tl.float8e4nv:  # noqa: SIM300 - KIND is the argument
        x = tl.div_rn(x, tl.zeros_like(x) + scale)
    return x.to(KIND)


@triton.jit
def turn_part_and_store(
    qkv, cos, sin, q_weight, k_weight, q, pool_k, pool_v, slots, eps, k_scale, v_scale,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, PAIRS: tl.constexpr, HEADS: tl.constexpr, NORMED: tl.constexpr,
):  # fmt: skip
    """The same where only the first 2 PAIRS numbers of a head are turned; one program per (row, HEADS heads)."""
    begin()
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row)
    head, dim = tl.program_id(1) * HEADS + tl.arange(0, HEADS), tl.arange(0, D)
    is_query, is_key, there = head < H, (head >= H) & (head < H + K), head < H + 2 * K
    is_first, is_second = dim < PAIRS, (dim >= PAIRS) & (dim < 2 * PAIRS)
    partner = tl.where(is_first, dim + PAIRS, tl.where(is_second, dim - PAIRS, dim))
    at = (row * (H + 2 * K) + head)[:, None] * D
    x = tl.load(qkv + at + dim[None, :], mask=there[:, None], other=0.0).to(tl.float32)
    z = tl.load(qkv + at + partner[None, :], mask=there[:, None], other=0.0).to(tl.float32)
    turned = (is_query | is_key)[:, None]
    if NORMED:
        mean = tl.div_rn(tl.sum(x * x, 1), tl.zeros([HEADS], tl.float32) + D * 1.0)
        factor = tl.div_rn(tl.zeros([HEADS], tl.float32) + 1.0, tl.sqrt_rn(mean + eps))[:, None]
        own = tl.where(is_query[:, None], tl.load(q_weight + dim)[None, :], tl.load(k_weight + dim)[None, :])
        other = tl.where(is_query[:, None], tl.load(q_weight + partner)[None, :], tl.load(k_weight + partner)[None, :])
        x, z = tl.where(turned, x * factor * own, x), tl.where(turned, z * factor * other, z)
    angle, is_turned = tl.where(is_second, dim - PAIRS, dim), is_first | is_second
    c = tl.load(cos + row * PAIRS + angle, mask=is_turned, other=1.0)[None, :]
    s = tl.load(sin + row * PAIRS + angle, mask=is_turned, other=0.0)[None, :]
    y = tl.where(is_first[None, :], x * c - z * s, x * c + z * s)
    y = tl.where(turned & is_turned[None, :], y, x)
    tl.store(q + (row * H + head)[:, None] * D + dim[None, :], y.to(q.dtype.element_ty), mask=is_query[:, None])
    if slot >= 0:
        page, offset = (slot // 64).to(tl.int64), slot % 64
        key_head = tl.where(is_key, head - H, head - H - K)
        at_pool = ((page * K + key_head) * 64 + offset)[:, None] * D + dim[None, :]
        tl.store(pool_k + at_pool, kept(y, k_scale, pool_k.dtype.element_ty), mask=is_key[:, None])
        tl.store(pool_v + at_pool, kept(y, v_scale, pool_v.dtype.element_ty), mask=((head >= H + K) & there)[:, None])
        first_value = H + K - tl.program_id(1) * HEADS
        if (first_value < HEADS) & is_last_of_new_page(slots, row, slot, tl.num_programs(0)):
            zero_rest_of_page(pool_v, slot, -first_value, K, D, HEADS)


@triton.jit
def is_last_of_new_page(slots, row, slot, num_rows):
    """Whether this row is the last that its step writes to its page, and the step began the page."""
    offset = slot % 64
    following = tl.load(slots + row + 1, mask=row + 1 < num_rows, other=-1)
    opening = tl.load(slots + row - offset, mask=row >= offset, other=-1)
    return (offset < 63) & (following != slot + 1) & (opening == slot - offset)


@triton.jit
def zero_rest_of_page(pool_v, slot, first_head, K: tl.constexpr, D: tl.constexpr, HEADS: tl.constexpr):
    """Whatever an earlier owner left in the slots to come is no number that a product could meet: 0 x NaN is NaN."""
    page, offset = (slot // 64).to(tl.int64), slot % 64
    place, dims = tl.arange(0, 64), tl.arange(0, D)
    zeros = tl.zeros([64, D], pool_v.dtype.element_ty)
    for i in range(HEADS):
        head = first_head + i
        at = ((page * K + head) * 64 + place)[:, None] * D + dims[None, :]
        tl.store(pool_v + at, zeros, mask=((place > offset) & (head >= 0) & (head < K))[:, None])


def rope_table(positions: Any, inv_freq: Any, scale: float) -> tuple[Any, Any]:
    """(cos, sin) [T, R/2] f32."""
    angles = len(inv_freq)
    frequencies = uploaded(inv_freq.tobytes(), str(positions.device))
    cos, sin = (torch.empty((len(positions), angles), dtype=torch.float32, device=positions.device) for _ in range(2))
    if not angles:
        return cos, sin  # nothing is turned
    block = triton.next_power_of_2(angles)
    turn_table[(len(positions),)](positions, frequencies, cos, sin, scale, angles, block, num_warps=1, **EARLY)
    return cos, sin


@cache
def uploaded(inv_freq: bytes, device: str) -> Any:
    """Made once, before any graph is captured."""
    return torch.from_numpy(np.frombuffer(inv_freq, np.float64).copy()).to(device)


def rotate_and_store(
    qkv: Any, kv: Any, turns: tuple[Any, Any], num_heads: int, q_norm: Any, k_norm: Any, eps: float
) -> Any:
    """Queries [T, H, D]; this step's keys and values are in the cache.

    Or, where a step's few tokens are turned and attend in one kernel, what `attention` takes in their place.
    """
    if not INTERPRETED and rows.serves(qkv, kv, turns, num_heads):
        return Unturned(qkv, kv, turns, num_heads, q_norm, k_norm, eps)
    return turned_and_stored(qkv, kv, turns, num_heads, q_norm, k_norm, eps)


class Unturned(NamedTuple):
    """The arguments of `rotate_and_store`, put off."""

    qkv: Any
    kv: Any
    turns: tuple[Any, Any]
    num_heads: int
    q_norm: Any
    k_norm: Any
    eps: float


def turned_and_stored(
    qkv: Any, kv: Any, turns: tuple[Any, Any], num_heads: int, q_norm: Any, k_norm: Any, eps: float
) -> Any:
    """Queries, at once."""
    key_heads, size = kv.k.shape[1], kv.k.shape[3]
    if size & (size - 1):
        raise ShapeError(f"on the GPU the size of a head is a power of two, not {size} numbers")
    q = torch.empty((len(qkv), num_heads, size), dtype=qkv.dtype, device=qkv.device)
    normed, pairs = q_norm is not None, turns[0].shape[1]
    groups = triton.cdiv(num_heads + 2 * key_heads, HEADS)
    norms = (q_norm, k_norm) if normed else (turns[0], turns[0])
    given = qkv, *turns, *norms, q, kv.k, kv.v, kv.ragged.slots, eps, *kv.scales, num_heads, key_heads, size
    if 2 * pairs < size:
        turn_part_and_store[(len(qkv), groups)](*given, pairs, HEADS, normed, num_warps=4, **EARLY)
        return q
    together = groups if len(qkv) >= MANY_ROWS else 1
    turn_and_store[(len(qkv), triton.cdiv(groups, together))](
        *given, HEADS, together, normed, num_warps=4, **EARLY
    )  # fmt: skip
    return q
