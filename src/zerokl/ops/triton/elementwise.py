"""What happens to single elements between products: gates, factors, caps. The CPU's functions, so the CPU's roundings.

Maths       `ops.gated`, `ops.geglu`, `ops.gelu`, `ops.scale`, `ops.softcap`
Rounding    f32 inside, as there; then once to y's type: x's own, or f32 where a residual takes the sum
Same bits   always: one element, one result
Oracle      ops/reference_hybrid.py, bit for bit in float32 (tests/gpu/test_elementwise.py)
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from zerokl.ops.triton.numbers import EARLY, begin, sigmoid, silu, tanh

BLOCK = 1024
ACTIVATIONS = {"identity": 0, "sigmoid": 1, "silu": 2}


@triton.jit
def activated(x, HOW: tl.constexpr):
    if HOW == 1:
        y = sigmoid(x)
    elif HOW == 2:
        y = silu(x)
    else:
        y = x
    return y


@triton.jit
def bent(x):
    """gelu in its tanh form."""
    inside = tl.fma(x * x * x, 0.035677408136300125, x * 0.7978845608028654)
    return x * 0.5 * (1.0 + tanh(inside))


@triton.jit
def gated_rows(x, gates, y, width, x_stride, gate_stride, HOW: tl.constexpr, BLOCK: tl.constexpr):
    begin()
    row, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    values = tl.load(x + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(gates + row * gate_stride + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * width + column, (values * activated(gate, HOW)).to(y.dtype.element_ty), mask=inside)


@triton.jit
def bent_rows(x, y, width, x_stride, GATED: tl.constexpr, BLOCK: tl.constexpr):
    begin()
    row, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    values = bent(tl.load(x + row * x_stride + column, mask=inside, other=0.0).to(tl.float32))
    if GATED:
        values = values * tl.load(x + row * x_stride + width + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * width + column, values.to(y.dtype.element_ty), mask=inside)


@triton.jit
def scaled_rows(
    x, factors, residual, y, width, x_stride, factor, BY_ROW: tl.constexpr, ADDED: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    begin()
    row, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    if BY_ROW:
        factor = tl.load(factors + row)
    values = tl.load(x + row * x_stride + column, mask=inside, other=0.0).to(tl.float32) * factor
    if ADDED:
        values = values + tl.load(residual + row * width + column, mask=inside, other=0.0)
    tl.store(y + row * width + column, values.to(y.dtype.element_ty), mask=inside)


@triton.jit
def capped_rows(x, y, width, cap, BLOCK: tl.constexpr):
    begin()
    row, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    values = tl.load(x + row * width + column, mask=inside, other=0.0)
    tl.store(y + row * width + column, tanh(tl.div_rn(values, tl.zeros_like(values) + cap)) * cap, mask=inside)


def gated(x: Any, gate: Any, activation: str) -> Any:
    rows, width = x.shape
    y = torch.empty((rows, width), dtype=x.dtype, device=x.device)
    gated_rows[(rows, triton.cdiv(width, BLOCK))](
        x, gate, y, width, x.stride(0), gate.stride(0), ACTIVATIONS[activation], BLOCK, num_warps=4, **EARLY
    )
    return y


def sigmoid_of(x: Any) -> Any:
    ones = torch.ones(x.shape, dtype=torch.float32, device=x.device)
    return gated(ones, x, "sigmoid")


def geglu(gate_up: Any) -> Any:
    return bent_of(gate_up, gate_up.shape[1] // 2, True)


def gelu(x: Any) -> Any:
    return bent_of(x, x.shape[1], False)


def bent_of(x: Any, width: int, is_gated: bool) -> Any:
    y = torch.empty((len(x), width), dtype=x.dtype, device=x.device)
    bent_rows[(len(x), triton.cdiv(width, BLOCK))](
        x, y, width, x.stride(0), is_gated, BLOCK, num_warps=4, **EARLY
    )  # fmt: skip
    return y


def scale(x: Any, factor: Any, residual: Any) -> Any:
    """A residual's own memory takes the sum, as in `linear`."""
    rows, width = x.shape
    by_row, added = not isinstance(factor, float | int), residual is not None
    y = residual if added else torch.empty((rows, width), dtype=x.dtype, device=x.device)
    number = 1.0 if by_row else float(factor)
    scaled_rows[(rows, triton.cdiv(width, BLOCK))](
        x, factor if by_row else y, y, y, width, x.stride(0), number, by_row, added, BLOCK, num_warps=4, **EARLY
    )
    return y


def softcap(x: Any, cap: float) -> Any:
    rows, width = x.shape
    y = torch.empty_like(x)
    capped_rows[(rows, triton.cdiv(width, BLOCK))](x, y, width, float(cap), BLOCK, num_warps=4, **EARLY)
    return y
