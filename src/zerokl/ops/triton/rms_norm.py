"""Root mean square normalisation.

Maths       y = x * (1 / sqrt(mean(x^2) + eps)) * w
Shapes      x [T, E] f32 or bf16, w [E] f32 -> y [T, E] bf16; E up to 16,384
Rounding    fp32: squares, their sum, / E, + eps, square root, 1 / it, x * that, * w; then once to bf16
Order       one row per program; the reduction's tree depends on E alone
Same bits   for every T and row position
Frozen      block (the power of two that holds E) and warps
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from zerokl.ops.triton.numbers import EARLY, NARROW, begin


@triton.jit
def rms_norm_rows(x, weight, y, eps, E: tl.constexpr, BLOCK: tl.constexpr):
    begin()
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < E
    values = tl.load(x + row * E + column, mask=inside, other=0.0).to(tl.float32)
    w = tl.load(weight + column, mask=inside, other=0.0)
    mean = tl.div_rn(tl.sum(values * values, 0), E * 1.0)
    factor = tl.div_rn(1.0, tl.sqrt_rn(mean + eps))
    tl.store(y + row * E + column, (values * factor * w).to(y.dtype.element_ty), mask=inside)


def rms_norm(x: Any, weight: Any, eps: float) -> Any:
    rows, width = x.shape
    y = torch.empty_like(x, dtype=NARROW)
    block = triton.next_power_of_2(width)
    rms_norm_rows[(rows,)](x, weight, y, eps, width, block, num_warps=warps_for(block), **EARLY)
    return y


def warps_for(block: int) -> int:
    """Frozen: 16 bytes per thread and load, up to 16 warps."""
    return max(1, min(16, block // 256))
