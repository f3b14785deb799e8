"""What attention's scores gain by distance: a table of every row, head and distance, made before attention reads it.

Maths       y[t, h, d] = sum_b r[t, h, b] * profile[b, d]
Shapes      r [T, H, B] bf16 or f32, profile [B, extent] f32 -> y [T, H, extent] f32
Order       a chain of fma over b from +0
Same bits   for every T and row position
Oracle      ops/reference.py: distance_bias
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from zerokl.ops.triton.numbers import EARLY, begin

BLOCK = 512


@triton.jit
def distance_rows(r, profile, y, extent, stride, H: tl.constexpr, B: tl.constexpr, BLOCK: tl.constexpr):
    begin()
    number = tl.program_id(0).to(tl.int64)
    at = r + number // H * stride + number % H * B
    distance = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = distance < extent
    acc = tl.zeros([BLOCK], tl.float32)
    for b in tl.static_range(B):
        weight = tl.zeros([BLOCK], tl.float32) + tl.load(at + b).to(tl.float32)
        acc = tl.fma(weight, tl.load(profile + b * extent + distance, mask=inside, other=0.0), acc)
    tl.store(y + number * extent + distance, acc, mask=inside)


def distance_table(r: Any, profile: Any) -> Any:
    (rows, heads, size), extent = r.shape, profile.shape[1]
    y = torch.empty((rows, heads, extent), dtype=torch.float32, device=r.device)
    distance_rows[(rows * heads, triton.cdiv(extent, BLOCK))](
        r, profile, y, extent, r.stride(0), heads, size, BLOCK, num_warps=4, **EARLY
    )
    return y
