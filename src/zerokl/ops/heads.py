"""From the fused projection to what attention needs: heads, their norm, their rotation, and the cache."""

from __future__ import annotations

import numpy as np

from zerokl.errors import ShapeError
from zerokl.ops import cpu
from zerokl.ops.device import gpu, on_gpu
from zerokl.ops.kv import F32, LayerKV, check_array, check_kv


def rotate_and_store(
    qkv: F32,
    kv: LayerKV,
    turns: tuple[F32, F32],
    num_heads: int,
    *,
    q_norm: F32 | None = None,
    k_norm: F32 | None = None,
    norm_eps: float = 0.0,
) -> F32:
    """Queries, normalised and turned; this step's keys, likewise, and values go to the cache.

    Maths       q, k, v = heads of qkv; q, k = rope(rms_norm(q, q_norm)), rope(rms_norm(k, k_norm)); store_kv(k, v)
    Shapes      qkv [T, (H + 2K) D], q_norm, k_norm [D] or neither -> q [T, H, D]
    Rounding    f32 operations as in `rms_norm`, `rope` and `store_kv`, in turn; GPU: f32, rounded once at the end
    Same bits   for every T and row position
    Raises      ShapeError, UnsupportedDtype; EngineError for a slot outside the pool
    Oracle      ops/reference.py: rms_norm, rope, store_kv; ops/triton/rope.py
    """
    if (q_norm is None) != (k_norm is None):
        raise ShapeError("queries and keys are both normalised, or neither")
    if on_gpu(qkv):
        return gpu().rotate_and_store(  # type: ignore[no-any-return]
            qkv, kv, turns, num_heads, q_norm, k_norm, norm_eps
        )
    check_kv(kv)
    kv_heads, size = kv.k.shape[1:3]
    rows = len(kv.ragged.slots)
    check_array("qkv", qkv, np.float32, (rows, (num_heads + 2 * kv_heads) * size))
    pairs = turns[0].shape[-1]
    for name, table in zip(("cos", "sin"), turns, strict=True):
        check_array(name, table, np.float32, (rows, pairs))
    if 2 * pairs > size:
        raise ShapeError(f"{pairs} angles turn {2 * pairs} elements, a head has {size}")
    if num_heads == 0:
        return np.empty((rows, 0, size), np.float32)  # a rank that has no heads
    if q_norm is None or k_norm is None:
        return cpu.rotate_and_store(qkv, kv, turns, num_heads, None, 0.0)
    for name, norm in (("q_norm", q_norm), ("k_norm", k_norm)):
        check_array(name, norm, np.float32, (size,))
    return cpu.rotate_and_store(qkv, kv, turns, num_heads, (q_norm, k_norm), norm_eps)


def split_heads(qkv: F32, num_heads: int, num_kv_heads: int) -> tuple[F32, F32, F32]:
    """[T, (H + 2K)·D] -> q [T, H, D], k [T, K, D], v [T, K, D], on the CPU: views if T is 1, else copies.

    Copies because operations take contiguous rows; 0.5 % of a prefill of 512 tokens of SmolLM2.
    """
    heads = qkv.reshape(len(qkv), num_heads + 2 * num_kv_heads, -1)
    return (
        np.ascontiguousarray(heads[:, :num_heads]),
        np.ascontiguousarray(heads[:, num_heads:-num_kv_heads]),
        np.ascontiguousarray(heads[:, -num_kv_heads:]),
    )
