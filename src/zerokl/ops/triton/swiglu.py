"""The gate of a gated MLP.

Maths       y = g / (1 + exp(-g)) * u
Rounding    fp32 inside (exp2 is the device's, the division IEEE's), once to y's type
Same bits   always: one pair, one result; also as the last step of a gated chain
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from zerokl.ops.triton.numbers import EARLY, begin


@triton.jit
def gate(g, u):
    ones = tl.zeros_like(g) + 1.0
    return tl.div_rn(g, ones + tl.exp2(g * -1.4426950408889634)) * u


@triton.jit
def swiglu_rows(x, y, width, BLOCK: tl.constexpr):
    begin()
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    g = tl.load(x + row * 2 * width + column, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(x + row * 2 * width + width + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * width + column, gate(g, u).to(y.dtype.element_ty), mask=inside)


def swiglu(gate_up: Any) -> Any:
    """[T, 2F] -> [T, F]."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    y = torch.empty((rows, width), dtype=gate_up.dtype, device=gate_up.device)
    block = 2048
    swiglu_rows[(rows, triton.cdiv(width, block))](gate_up, y, width, block, num_warps=8, **EARLY)
    return y
