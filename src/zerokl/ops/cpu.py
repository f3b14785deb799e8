"""The CPU backend of the dense operations: allocates the output, calls the native kernel. Inputs are checked already.

`np.empty` is safe here: every kernel writes every element of its output.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from zerokl import _native
from zerokl.ops.kv import F32, I32, LayerKV


def embedding(weight: _native.Matrix, ids: I32) -> F32:
    out = np.empty((len(ids), weight.shape[1]), np.float32)
    _native.embedding(weight, ids, out)
    return out


def linear(x: F32, weight: _native.Matrix, bias: F32 | None, residual: F32 | None) -> F32:
    out = np.empty((len(x), weight.shape[0]), np.float32)
    _native.linear(x, weight, bias, residual, out)
    return out


def gated_linear(x: F32, weight: _native.Matrix, bias: F32 | None) -> F32:
    out = np.empty((len(x), weight.shape[0] // 2), np.float32)
    _native.gated_linear(x, weight, bias, out)
    return out


def rms_norm(x: F32, weight: F32, eps: float) -> F32:
    out = np.empty(x.shape, np.float32)
    if x.ndim == 2:
        _native.rms_norm(x, weight, eps, out)
    else:
        width = len(weight)
        rows = (x.size // width if width else 0, width)
        _native.rms_norm(x.reshape(rows), weight, eps, out.reshape(rows))
    return out


def rope_table(positions: I32, inv_freq: NDArray[np.float64], scale: float) -> tuple[F32, F32]:
    cos, sin = (np.empty((len(positions), len(inv_freq)), np.float32) for _ in range(2))
    _native.rope_table(positions, inv_freq, scale, cos, sin)
    return cos, sin


def rope(x: F32, cos: F32, sin: F32, interleaved: bool) -> F32:
    out = np.empty(x.shape, np.float32)
    _native.rope(x, cos, sin, interleaved, out)
    return out


def rotate_and_store(
    qkv: F32, kv: LayerKV, turns: tuple[F32, F32], num_heads: int, norms: tuple[F32, F32] | None, norm_eps: float
) -> F32:
    q = np.empty((len(qkv), num_heads, kv.k.shape[2]), np.float32)
    q_norm, k_norm = norms or (None, None)
    _native.rotate_and_store(qkv, *turns, kv.ragged.slots, kv.k, kv.v, q_norm, k_norm, norm_eps, q, kv.scales)
    return q


def swiglu(gate_up: F32) -> F32:
    out = np.empty((len(gate_up), gate_up.shape[1] // 2), np.float32)
    _native.swiglu(gate_up, out)
    return out
