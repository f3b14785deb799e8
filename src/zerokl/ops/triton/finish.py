"""What a chain does with its sums, for sums that a library made: factors, bias, gate, residual, one rounding.

Maths, rounding, bits: those of `chain.py`
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from zerokl.ops.triton.chain import scaled
from zerokl.ops.triton.numbers import EARLY, begin
from zerokl.ops.triton.swiglu import gate

BLOCK = 1024


@triton.jit
def finish_rows(
    sums, factors, bias, y, N, SCALED: tl.constexpr, BIASED: tl.constexpr, ADDED: tl.constexpr, GATED: tl.constexpr,
    NARROW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    begin()
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < N
    at = sums + row * N * (2 if GATED else 1) + column
    acc = tl.load(at, mask=inside, other=0.0)[None, :]
    acc = scaled(acc, tl.load(factors + column, mask=inside, other=1.0), SCALED)
    if BIASED:
        acc += tl.load(bias + column, mask=inside, other=0.0)[None, :]
    if GATED:
        up = tl.load(at + N, mask=inside, other=0.0)[None, :]
        up = scaled(up, tl.load(factors + N + column, mask=inside, other=1.0), SCALED)
        if BIASED:
            up += tl.load(bias + N + column, mask=inside, other=0.0)[None, :]
        acc = gate(acc.to(NARROW).to(tl.float32), up.to(NARROW).to(tl.float32))
    at_y = y + row * N + column[None, :]
    if ADDED:
        acc += tl.load(at_y, mask=inside[None, :], other=0.0)
    tl.store(at_y, acc.to(y.dtype.element_ty), mask=inside[None, :])


def finish(sums: Any, factors: Any, mode: int, bias: Any, y: Any, added: bool, gated: bool) -> Any:
    """[T, N] or, gated, [T, 2N] float32 -> y [T, N], filled or added to. `factors`, `mode` as in `run_chain`."""
    rows, columns = y.shape
    narrow = tl.float32 if y.dtype == sums.dtype else tl.bfloat16
    finish_rows[(rows, triton.cdiv(columns, BLOCK))](
        sums, factors, bias, y, columns, mode, bias is not None, added, gated, narrow, BLOCK, num_warps=4, **EARLY
    )
    return y
