"""What decoders share: cutting a fused projection into heads, and the gated MLP."""

from __future__ import annotations

from typing import Any

import numpy as np

from zerokl import ops


def split_heads(qkv: np.ndarray, num_heads: int, num_kv_heads: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """[T, (H + 2K)·D] -> q [T, H, D], k [T, K, D], v [T, K, D]; views if T is 1, else copies."""
    heads = qkv.reshape(len(qkv), num_heads + 2 * num_kv_heads, -1)
    q, k, v = np.split(heads, (num_heads, num_heads + num_kv_heads), axis=1)
    return np.ascontiguousarray(q), np.ascontiguousarray(k), np.ascontiguousarray(v)


def gated_mlp(x: np.ndarray, layer: Any, residual: np.ndarray) -> np.ndarray:
    """residual + down(silu(gate(x)) * up(x)), gate and up being one matrix."""
    gate_up = ops.linear(x, layer.gate_up, bias=layer.gate_up_bias)
    return ops.linear(ops.swiglu(gate_up), layer.down, bias=layer.down_bias, residual=residual)
