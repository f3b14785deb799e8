"""Paged attention: some queries of many sequences against the cached keys that each may see."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec.structs import replace

from zerokl import _native
from zerokl.errors import ShapeError
from zerokl.ops.device import gpu, on_gpu, only_on_cpu
from zerokl.ops.kv import F32, LayerKV, check_array, check_kv

CHUNK = 512
"""Frozen: keys are summed in chunks that start at absolute multiples of this. It is part of the fingerprint."""

LOG2_E = 1.4426950408889634
"""log2(e) to float64; a literal, because a libm may round it otherwise."""


def attention(
    q: F32,
    kv: LayerKV,
    scale: float,
    *,
    window: int | None = None,
    softcap: float | None = None,
    sinks: F32 | None = None,
    bias: tuple[F32, F32] | None = None,
) -> F32:
    """Every row's softmax-weighted mean of the values that it may see.

    Maths       row at position t sees keys j <= t, and j > t - window if there is a window (the token itself counts)
                s_j = q . k_j * scale, or softcap * tanh(q . k_j * scale / softcap)
                with bias (r, profile): s_j += r . profile[:, t - j], and nothing where t - j is beyond the profile
                y = sum_j exp(s_j) v_j / (sum_j exp(s_j) + exp(sink))          sink: of the query head, if given
    Shapes      q [T, H, D], kv (K heads, H a multiple of K), sinks [H], r [T, H, B], profile [B, extent]
                -> y [T, H * D]; all f32
    Rounding    f32 everywhere, natural logs turned into base 2 once: s = chain * f32(scale * log2 e)
                with softcap: s = tanh(chain * f32(scale / softcap)) * f32(softcap * log2 e)
                with bias: s = fma(chain of fma over B from +0, f32(log2 e), s)
    Order       keys in chunks of 512 absolute positions. Per (row, chunk):
                  chain of fma over d from +0; m = max; p = exp2(s - m); sum of p in 16 lanes by absolute position
                  mod 16, folded by (i, i+8), (i, i+4), (i, i+2), (0, 1); O = chain of fma(p, v, O) over keys from +0.
                Chunks in order, from m = -inf, l = 0, O = 0:
                  m' = max(m, mc), a = exp2(m - m'), b = exp2(mc - m'), l = fma(l, a, lc * b), O = fma(O, a, Oc * b)
                then the sink, as one more chunk of m = sink * log2 e, l = 1, O = 0; then O / l. An m of -inf is
                subtracted as 0. A key that a row may not see is skipped, never multiplied. A row that sees nothing
                (position -1) is +0.
    Same bits   for every cut of a sequence into calls, every page number and page size, every neighbour, thread count
                and instruction set
    Free        query block, register tile, split of chunks over threads (tests/ops/test_attention.py)
    Frozen      chunk, lanes, tree: changing one changes bits, so CHANGELOG gets a "Bits" line
    Raises      ShapeError, UnsupportedDtype; EngineError for a page outside the pool
    Oracle      ops/reference.py: attention
    """
    if on_gpu(q):
        if sinks is not None:
            only_on_cpu(q, "attention with sinks")
        before, after = score_factors(scale, softcap)
        bent = () if window is None and softcap is None and bias is None else (after, window or 0, bias)
        attend = gpu().attention if kv.sharing is None else gpu().of_some_heads
        return attend(q, kv, before, *bent)  # type: ignore[no-any-return]
    check_kv(kv)
    rows, heads, size = q.shape if q.ndim == 3 else (0, 0, 0)
    check_array("q", q, np.float32, (kv.ragged.positions.shape[0], heads, kv.k.shape[2]))
    if kv.sharing is not None or heads == kv.k.shape[1] == 0:
        return of_some_heads(q, kv, scale, window=window, softcap=softcap, sinks=sinks, bias=bias)
    if heads == 0 or heads % kv.k.shape[1] != 0:
        raise ShapeError(f"{heads} query heads can't share {kv.k.shape[1]} key heads evenly")
    if window is not None and window < 1:
        raise ShapeError(f"a window holds at least the token itself, not {window} tokens")
    if sinks is not None:
        check_array("sinks", sinks, np.float32, (heads,))
    if bias is not None:
        check_array("bias's queries", bias[0], np.float32, (rows, heads, len(bias[1])))
        check_array("bias's profile", bias[1], np.float32, (bias[0].shape[2], bias[1].shape[-1]))
        if 0 in bias[1].shape:
            raise ShapeError("a bias has at least one number, and reaches at least the token itself")
    ragged = kv.ragged
    y = np.empty((rows, heads * size), np.float32)
    before, after = score_factors(scale, softcap)
    shape = (ragged.positions, ragged.row_starts, ragged.page_table)
    _native.attention(y, q, kv.k, kv.v, *shape, before, after, window or 0, sinks, bias, kv.scales)
    return y


def of_some_heads(
    q: F32, kv: LayerKV, scale: float, *, sinks: F32 | None, bias: tuple[F32, F32] | None, **more: Any
) -> F32:
    """Some query heads of an uneven share: those that are missing are computed too, from zeros, and left out again.

    At most two key heads' worth of queries; a kernel that knows of shares would save that.
    """
    rows, heads, size = q.shape
    if kv.sharing is None:
        return np.zeros((rows, 0), np.float32)
    group, before = kv.sharing
    total = group * kv.k.shape[1]
    own = slice(before, before + heads)

    def padded(array: F32, axis: int) -> F32:
        shape = list(array.shape)
        shape[axis] = total
        whole = np.zeros(shape, np.float32)
        whole[(slice(None),) * axis + (own,)] = array
        return whole

    whole_bias = None if bias is None else (padded(bias[0], 1), bias[1])
    whole_sinks = None if sinks is None else padded(sinks, 0)
    even = replace(kv, sharing=None)
    y = attention(padded(q, 1), even, scale, sinks=whole_sinks, bias=whole_bias, **more)
    return np.ascontiguousarray(y.reshape(rows, total, size)[:, own]).reshape(rows, heads * size)


def score_factors(scale: float, softcap: float | None) -> tuple[float, float]:
    """(f32 factor of the chain, f32 factor of its tanh or 0 for none): the only roundings of the host."""
    if softcap is None:
        return float(np.float32(scale * LOG2_E)), 0.0
    return float(np.float32(scale / softcap)), float(np.float32(softcap * LOG2_E))
