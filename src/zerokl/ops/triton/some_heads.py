"""Attention of a rank whose query heads don't fill its key heads' groups: the missing ones are zeros, and left out."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from zerokl.ops.kv import LayerKV
from zerokl.ops.triton.attention import attention


def of_some_heads(
    q: Any, kv: LayerKV, scale: float, after: float = 0.0, window: int = 0, bias: tuple[Any, Any] | None = None
) -> Any:
    """[T, H, D] -> [T, H D], as `attention`. At most two key heads' worth of queries are computed for nothing."""
    rows, heads, size = q.shape
    group, before = kv.sharing or (1, 0)
    own = slice(before, before + heads)

    def padded(x: Any) -> Any:
        whole = x.new_zeros((rows, group * kv.k.shape[1], x.shape[2]))
        whole[:, own] = x
        return whole

    whole_bias = None if bias is None else (padded(bias[0]), bias[1])
    y = attention(padded(q), replace(kv, sharing=None), scale, after, window, whole_bias)
    return y.view(rows, -1, size)[:, own].reshape(rows, heads * size).contiguous()  # reshape alone keeps the stride
