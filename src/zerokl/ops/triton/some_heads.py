"""Attention of a rank whose query heads don't fill its key heads' groups: the missing ones are zeros, and left out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from zerokl.ops.kv import LayerKV
from zerokl.ops.triton.attention import attention


def of_some_heads(q: Any, kv: LayerKV, scale: float) -> Any:
    """[T, H, D] -> [T, H D], as `attention`. At most two key heads' worth of queries are computed for nothing."""
    rows, heads, size = q.shape
    group, before = kv.sharing or (1, 0)
    own = slice(before, before + heads)
    whole = q.new_zeros((rows, group * kv.k.shape[1], size))
    whole[:, own] = q
    y = attention(whole, replace(kv, sharing=None), scale)
    return y.view(rows, -1, size)[:, own].reshape(rows, heads * size)
