"""Layer normalisation.

Maths       y = (x - mean) * (1 / sqrt(mean((x - mean)^2) + eps)) * w + b
Shapes      x [T, E] f32 or bf16, w, b [E] f32 -> y [T, E] bf16; E up to 16,384
Rounding    fp32: sum, / E, x - it, squares, their sum, / E, + eps, square root, 1 / it, that times x - mean; fma with w
            and b; then once to bf16
Order       one row per program; the reductions' tree depends on E alone
Same bits   for every T and row position
Frozen      block (the power of two that holds E) and warps
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from zerokl.ops.triton.numbers import EARLY, NARROW, begin
from zerokl.ops.triton.rms_norm import warps_for


@triton.jit
def layer_norm_rows(x, weight, bias, y, eps, E: tl.constexpr, BLOCK: tl.constexpr):
    begin()
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < E
    values = tl.load(x + row * E + column, mask=inside, other=0.0).to(tl.float32)
    w = tl.load(weight + column, mask=inside, other=0.0)
    b = tl.load(bias + column, mask=inside, other=0.0)
    less = tl.where(inside, values - tl.div_rn(tl.sum(values, 0), E * 1.0), 0.0)
    mean = tl.div_rn(tl.sum(less * less, 0), E * 1.0)
    factor = tl.div_rn(1.0, tl.sqrt_rn(mean + eps))
    tl.store(y + row * E + column, tl.fma(less * factor, w, b).to(y.dtype.element_ty), mask=inside)


def layer_norm(x: Any, weight: Any, bias: Any, eps: float) -> Any:
    rows, width = x.shape
    y = torch.empty_like(x, dtype=NARROW)
    block = triton.next_power_of_2(width)
    layer_norm_rows[(rows,)](x, weight, bias, y, eps, width, block, num_warps=warps_for(block), **EARLY)
    return y
