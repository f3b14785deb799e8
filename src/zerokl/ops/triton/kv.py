"""Keys and values to their slots, where they don't come out of a fused projection (`rope.py` does that).

Shapes      k, v [T, K, D] f32 or bf16, the pools [P, K, 64, D]
Rounding    once, to the pool's type
Same bits   for every T, row position, page number
NaN         a page's values whose slots nobody has filled yet are zeroed as the page is begun, as there
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from zerokl.ops.triton.numbers import EARLY, begin
from zerokl.ops.triton.rope import is_last_of_new_page, kept, zero_rest_of_page


@triton.jit
def store_rows(
    k, v, pool_k, pool_v, slots, k_stride, v_stride, k_scale, v_scale,
    K: tl.constexpr, D: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    begin()
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row)
    if slot >= 0:
        head, dim = tl.arange(0, HEADS), tl.arange(0, D)
        there = (head < K)[:, None]
        own = head[:, None] * D + dim[None, :]
        page, offset = (slot // 64).to(tl.int64), slot % 64
        at = ((page * K + head) * 64 + offset)[:, None] * D + dim[None, :]
        kind = pool_k.dtype.element_ty
        own_k = tl.load(k + row * k_stride + own, mask=there, other=0.0).to(tl.float32)
        own_v = tl.load(v + row * v_stride + own, mask=there, other=0.0).to(tl.float32)
        tl.store(pool_k + at, kept(own_k, k_scale, kind), mask=there)
        tl.store(pool_v + at, kept(own_v, v_scale, kind), mask=there)
        if is_last_of_new_page(slots, row, slot, tl.num_programs(0)):
            zero_rest_of_page(pool_v, slot, 0, K, D, K)


def store_kv(kv: Any, k: Any, v: Any) -> None:
    rows, heads, size = k.shape
    store_rows[(rows,)](
        k, v, kv.k, kv.v, kv.ragged.slots, k.stride(0), v.stride(0), *kv.scales, heads, size,
        triton.next_power_of_2(heads), num_warps=4, **EARLY,
    )  # fmt: skip
