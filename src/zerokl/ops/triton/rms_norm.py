"""Root mean square normalisation.

Maths       y = x * (1 / sqrt(mean(x^2) + eps)) * w
Shapes      x [T, E] or [T, H, E] f32 or bf16, w [E] f32 -> y likewise, bf16, or f32 if `wide`; E up to 16,384
Rounding    fp32: squares, their sum, / E, + eps, square root, 1 / it, x * that, * w; then once to y's type
Order       one row, or head of a row, per program; the reduction's tree depends on E alone
            (`streamed.py` adds one row's squares in the same order, in the product that follows)
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
def rms_norm_rows(x, weight, y, eps, stride, HEADS: tl.constexpr, E: tl.constexpr, BLOCK: tl.constexpr):
    """One program per head of a row; rows of x are `stride` apart, y's lie close."""
    column = tl.arange(0, BLOCK)
    inside = column < E
    # No kernel writes it, and it comes from memory, while x is in the L2 cache.
    w = tl.load(weight + column, mask=inside, other=0.0)
    begin()
    number = tl.program_id(0).to(tl.int64)
    at = x + number // HEADS * stride + number % HEADS * E
    values = tl.load(at + column, mask=inside, other=0.0).to(tl.float32)
    mean = tl.div_rn(tl.sum(values * values, 0), E * 1.0)
    factor = tl.div_rn(1.0, tl.sqrt_rn(mean + eps))
    tl.store(y + number * E + column, (values * factor * w).to(y.dtype.element_ty), mask=inside)


def rms_norm(x: Any, weight: Any, eps: float, wide: bool = False) -> Any:
    """[T, E], or [T, H, E]: each head by itself."""
    rows, heads, width = len(x), x.shape[1] if x.ndim == 3 else 1, x.shape[-1]
    y = torch.empty(x.shape, dtype=torch.float32 if wide else NARROW, device=x.device)
    block = triton.next_power_of_2(width)
    rms_norm_rows[(rows * heads,)](
        x, weight, y, eps, x.stride(0), heads, width, block, num_warps=warps_for(block), **EARLY
    )
    return y


def warps_for(block: int) -> int:
    """Frozen: 16 bytes per thread and load, up to 16 warps."""
    return max(1, min(16, block // 256))
