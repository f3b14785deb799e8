"""The executable oracle: every operation in plain numpy, in the order that its contract states. Slow and obvious.

The CPU bodies equal this file bit for bit. Arrays go in and come out as the operations' own (f32), except that a
weight is its plain [N, K] array. Loops run over the dimension whose order matters, numpy over all the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zerokl.ops.attention import CHUNK, score_factors
from zerokl.ops.kv import F32, I32, LayerKV
from zerokl.ops.reference_numbers import (
    F64,
    LN_2,
    LOG2_E,
    exp,
    exp2,
    f32,
    fma,
    fold,
    lane_sum,
    log2,
    narrow,
    sin_cos,
    tanh,
    widen,
)
from zerokl.ops.sample import GREEDY_BELOW, Draw
from zerokl.ops.score import BLOCK
from zerokl.types import Logprobs, LogprobSpec

# --- dense ---------------------------------------------------------------------------------------------------------


def pack(weight: NDArray[Any], dtype: str) -> F32:
    """The numbers that the packed matrix stands for. uint16 is the bits of bf16."""
    exact = (weight.astype(np.uint32) << 16).view(np.float32) if weight.dtype == np.uint16 else f32(weight)
    if dtype == "bfloat16":
        bits = exact.view(np.uint32)
        rounded = bits + 0x7FFF + (bits >> 16 & 1)  # half a unit, and a tie goes to even
        return (np.where(np.isnan(exact), bits | 0x400000, rounded) >> 16 << 16).astype(np.uint32).view(np.float32)
    if dtype == "float16":
        with np.errstate(over="ignore"):
            return exact.astype(np.float16).astype(np.float32)
    return exact


def embedding(weight: F32, ids: I32) -> F32:
    return weight[ids]


@np.errstate(all="ignore")
def linear(
    x: F32, weight: F32, *, bias: F32 | None = None, residual: F32 | None = None, leaves: Sequence[int] = ()
) -> Any:
    ends = [*leaves] or [weight.shape[1]]
    y = tree([chain(x[:, start:end], weight[:, start:end]) for start, end in pairwise([0, *ends])])
    y = y if bias is None else y + bias
    return y if residual is None else y + residual


def chain(x: F32, weight: F32) -> Any:
    y = np.zeros((len(x), len(weight)), np.float32)
    for k in range(weight.shape[1]):
        y = fma(x[:, k, None], weight[None, :, k], y)
    return y


def tree(leaves: Sequence[F32]) -> Any:
    """A balanced binary tree over the next power of two of places; empty places are at the end."""
    if len(leaves) == 1:
        return leaves[0]
    half = 2 ** ((len(leaves) - 1).bit_length() - 1)
    return tree(leaves[:half]) + tree(leaves[half:])


@np.errstate(all="ignore")
def rms_norm(x: F32, weight: F32, eps: float) -> Any:
    lanes = np.zeros((*x.shape[:-1], 16), np.float32)
    for i in range(x.shape[-1]):
        lanes[..., i % 16] = fma(x[..., i], x[..., i], lanes[..., i % 16])
    factor = f32(1) / np.sqrt(fold(lanes) / f32(x.shape[-1]) + f32(eps))
    return x * factor[..., None] * weight


@np.errstate(all="ignore")
def layer_norm(x: F32, weight: F32, bias: F32, eps: float) -> Any:
    centred = x - (lane_sum(x) / f32(x.shape[-1]))[..., None]
    lanes = np.zeros((*x.shape[:-1], 16), np.float32)
    for i in range(x.shape[-1]):
        lanes[..., i % 16] = fma(centred[..., i], centred[..., i], lanes[..., i % 16])
    factor = f32(1) / np.sqrt(fold(lanes) / f32(x.shape[-1]) + f32(eps))
    return fma(centred * factor[..., None], weight, bias)


def rope_table(positions: I32, inv_freq: F64, scale: float = 1.0) -> tuple[F32, F32]:
    sin, cos = sin_cos(positions[:, None] * inv_freq)
    return (cos * scale).astype(np.float32), (sin * scale).astype(np.float32)


def rope(x: F32, cos: F32, sin: F32, *, interleaved: bool = False) -> F32:
    pairs, y = cos.shape[1], x.copy()
    if interleaved:
        first, second = slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)
    else:
        first, second = slice(0, pairs), slice(pairs, 2 * pairs)
    a, b, cos, sin = x[..., first], x[..., second], cos[:, None], sin[:, None]
    y[..., first], y[..., second] = a * cos - b * sin, b * cos + a * sin
    return y


@np.errstate(all="ignore")
def swiglu(gate_up: F32) -> Any:
    gate, up = np.split(gate_up, 2, axis=-1)
    return gate / (f32(1) + exp(-gate)) * up


# --- the cache and attention ---------------------------------------------------------------------------------------


def store_kv(kv: LayerKV, k: F32, v: F32) -> None:
    page_size = kv.ragged.page_size
    for row, slot in enumerate(kv.ragged.slots):
        if slot >= 0:
            kv.k[slot // page_size, :, :, slot % page_size] = narrow(k[row], kv.k.dtype, kv.scales[0])
            kv.v[slot // page_size, :, slot % page_size, :] = narrow(v[row], kv.v.dtype, kv.scales[1])


@np.errstate(all="ignore")
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
    factors = score_factors(scale, softcap)
    rows, heads, size = q.shape
    y = np.zeros((rows, heads, size), np.float32)
    for segment, pages in enumerate(kv.ragged.page_table):
        own = slice(*kv.ragged.row_starts[segment : segment + 2])
        positions = kv.ragged.positions[own]
        num_keys = int(positions.max(initial=-1)) + 1
        if num_keys:
            k, v = gather(kv, pages, num_keys, heads)
            own_bias = (bias[0][own], bias[1]) if bias else None
            y[own] = attend(q[own], positions, k, v, factors, window, sinks, own_bias)
    return y.reshape(rows, heads * size)


def gather(kv: LayerKV, pages: I32, num_keys: int, heads: int) -> tuple[F32, F32]:
    """Keys and values of one sequence as plain [num_keys, H, D], one copy per query head."""
    positions = np.arange(num_keys)
    page, offset = pages[positions // kv.ragged.page_size], positions % kv.ragged.page_size
    group = heads // kv.k.shape[1]
    k, v = widen(kv.k[page, :, :, offset], kv.scales[0]), widen(kv.v[page, :, offset, :], kv.scales[1])
    return k.repeat(group, axis=1), v.repeat(group, axis=1)


def attend(
    q: F32,
    positions: I32,
    k: F32,
    v: F32,
    factors: tuple[float, float],
    window: int | None,
    sinks: F32 | None,
    bias: tuple[F32, F32] | None = None,
) -> F32:
    rows, heads, size = q.shape
    m = np.full((rows, heads), -np.inf, np.float32)
    total, out = np.zeros((rows, heads), np.float32), np.zeros((rows, heads, size), np.float32)
    for start in range(0, len(k), CHUNK):
        keys = np.arange(start, min(start + CHUNK, len(k)))
        visible = keys <= positions[:, None]
        if window is not None:
            visible &= keys > positions[:, None] - window
        by_distance = None if bias is None else distance_bias(*bias, positions[:, None] - keys)
        part = chunk(q, k[keys], v[keys], visible[:, None, :], factors, by_distance)
        merged = merge((m, total, out), part)
        seen: NDArray[np.bool_] = np.any(
            visible, axis=1, keepdims=True
        )  # a chunk that a row does not see leaves the row alone
        m, total = np.where(seen, merged[0], m), np.where(seen, merged[1], total)
        out = np.where(seen[..., None], merged[2], out)
    if sinks is not None:
        m, total, out = merge((m, total, out), (sinks * LOG2_E, np.ones_like(total), np.zeros_like(out)))
    return np.where((positions >= 0)[:, None, None], out / total[..., None], f32(0))


State = tuple[F32, F32, F32]
"""(maximum [T, H], sum [T, H], weighted values [T, H, D]) of the keys seen so far."""


def distance_bias(queries: F32, profile: F32, distance: NDArray[Any]) -> F32:
    """[T, H, keys]: queries [T, H, B] by the profile's column of each (row, key)'s distance, 0 outside it."""
    inside = (distance >= 0) & (distance < profile.shape[1])
    total = np.zeros((*queries.shape[:2], distance.shape[1]), np.float32)
    for b in range(len(profile)):
        column = np.where(inside, profile[b][np.where(inside, distance, 0)], f32(0))
        total = fma(queries[:, :, b, None], column[:, None, :], total)
    return total


def chunk(
    q: F32,
    k: F32,
    v: F32,
    visible: NDArray[np.bool_],
    factors: tuple[float, float],
    by_distance: F32 | None = None,
) -> State:
    scores = np.zeros((*q.shape[:2], len(k)), np.float32)
    for d in range(q.shape[2]):
        scores = fma(q[:, :, d, None], k[:, :, d].T[None], scores)
    scores = scores * f32(factors[0])
    if factors[1]:
        scores = tanh(scores) * f32(factors[1])
    if by_distance is not None:
        scores = fma(by_distance, LOG2_E, scores)
    m = np.where(visible, scores, f32(-np.inf)).max(axis=-1)
    p = np.where(visible, exp2(scores - safe(m)[..., None]), f32(0))
    out = np.zeros(q.shape, np.float32)
    for j in range(len(k)):
        out = np.where(visible[:, :, j, None], fma(p[:, :, j, None], v[j], out), out)
    return m, lane_sum(p), out  # a lane never is -0, so adding the +0 of a hidden key is skipping it


def merge(old: State, new: State) -> State:
    m = np.where(old[0] > new[0], old[0], new[0])
    a, b = exp2(old[0] - safe(m)), exp2(new[0] - safe(m))
    total = fma(old[1], a, new[1] * b)
    return m, total, fma(old[2], a[..., None], new[2] * b[..., None])


def safe(maximum: F32) -> F32:
    """What is subtracted for a maximum: 0 where it is -inf, so that no inf - inf arises."""
    return np.where(maximum == -np.inf, f32(0), maximum)


# --- logits --------------------------------------------------------------------------------------------------------


@np.errstate(all="ignore")
def score(logits: F32, targets: I32, spec: LogprobSpec) -> Logprobs:
    rows, vocabulary = logits.shape
    num_top = min(spec.num_top, vocabulary)
    logprobs = np.stack([log_softmax(x) for x in logits]) if rows else logits
    order = np.stack([ranked(x)[:num_top] for x in logits]) if rows else np.empty((0, num_top), np.intp)
    ids = np.asarray(spec.ids, np.intp)
    return Logprobs(
        rows,
        num_top,
        len(ids),
        logprobs[np.arange(rows), targets].tobytes(),
        order.astype(np.int32).tobytes(),
        np.take_along_axis(logprobs, order, axis=1).tobytes(),
        logprobs[:, ids].tobytes(),
    )


def log_softmax(x: F32) -> Any:
    top, total = x.max(), f32(0)
    for start in range(0, len(x), BLOCK):
        block = x[start : start + BLOCK]
        m = block.max()
        if m > -np.inf:
            total = fma(lane_sum(exp2((block - m) * LOG2_E)), exp2((m - top) * LOG2_E), total)
    return x - (top + log2(total) * LN_2)


def ranked(x: F32) -> NDArray[np.intp]:
    """Ids by falling logit, equal ones by rising id."""
    return np.lexsort((np.arange(len(x)), -x))


# --- sampling ------------------------------------------------------------------------------------------------------


@np.errstate(all="ignore")
def sample(logits: F32, draws: Sequence[Draw]) -> I32:
    ids = np.empty(len(draws), np.int32)
    for row, (x, draw) in enumerate(zip(logits, draws, strict=True)):
        params = draw.params
        x = process_row(x, draw)
        noise = gumbel(random_words(params.seed, params.stream, draw.position, len(x)))
        ids[row] = np.argmax(x if is_greedy(draw) else x + noise)
    return ids


@np.errstate(all="ignore")
def process(logits: F32, draws: Sequence[Draw]) -> F32:
    rows = [process_row(x, draw) for x, draw in zip(logits, draws, strict=True)]
    return np.stack(rows) if rows else logits.copy()


def process_row(x: F32, draw: Draw) -> Any:
    params, x = draw.params, penalised(x, draw)
    for token, bias in params.logit_bias:
        x[token] += f32(bias)
    if draw.mask is not None:
        allowed = np.unpackbits(np.frombuffer(draw.mask, np.uint8), bitorder="little")[: len(x)]
        x = np.where(allowed == 1, x, f32(-np.inf))
    if is_greedy(draw):
        return np.where(np.arange(len(x)) == np.argmax(x), f32(0), f32(-np.inf))
    x = x / f32(params.temperature)
    order = ranked(x)
    e = exp2((x - x.max()) * LOG2_E)
    keep = np.ones(len(x), np.bool_)
    if params.top_k > 0:
        keep[order[params.top_k :]] = False
    if params.top_p < 1:
        weight = np.where(keep, np.floor(np.float64(e) * 2.0**40), 0).astype(np.int64)[order]
        threshold = max(1, int(np.ceil(params.top_p * np.float64(weight.sum()))))
        keep[order[np.cumsum(weight) - weight >= threshold]] = False
    if params.min_p > 0:
        keep &= e >= f32(params.min_p)
    return np.where(keep, x, f32(-np.inf))


def is_greedy(draw: Draw) -> bool:
    return bool(f32(draw.params.temperature) < f32(GREEDY_BELOW))


def penalised(x: F32, draw: Draw) -> F32:
    x, params = x.copy(), draw.params
    prompt, output = draw.history or ((), ())
    repetition = f32(params.repetition_penalty)
    for token in {*prompt, *output}:
        x[token] = x[token] / repetition if x[token] > 0 else x[token] * repetition
    for token in set(output):
        x[token] -= f32(params.frequency_penalty) * f32(list(output).count(token))
        x[token] -= f32(params.presence_penalty)
    return x


def gumbel(r: NDArray[np.uint32]) -> Any:
    """-log(E), E = -log(u), u = (r + 1/2) / 2^32.

    h is u or 1 - u, whichever is below 1/2. If it is 1 - u, then log(u) = log(w) + error / w with w = 1 - h as
    rounded and error = (1 - w) - h, both exact: the tail of likely winners (u near 1) keeps all its 32 bits.
    """
    low = r < 2**31
    h = (np.where(low, r, ~r).astype(np.float32) + f32(0.5)) * f32(2.0**-32)
    w = np.where(low, h, f32(1) - h)
    error = np.where(low, f32(0), (f32(1) - w) - h)
    exponential = -(log2(w) * LN_2) - error / w
    return -(log2(exponential) * LN_2)


def random_words(seed: int, stream: int, position: int, count: int) -> NDArray[np.uint32]:
    """Word `id mod 4` of the block of counter (id // 4, position, stream, 0), for id < count."""
    blocks = np.arange(-(-count // 4), dtype=np.uint64)
    rest = [np.full_like(blocks, value) for value in (position, stream, 0)]
    words = philox([blocks, *rest], (seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF))
    return np.stack(words, axis=1).reshape(-1)[:count].astype(np.uint32)


def philox(counter: list[NDArray[np.uint64]], key: tuple[int, int]) -> list[NDArray[np.uint64]]:
    """Philox4x32-10 of Salmon, Moraes, Dror and Shaw (SC 2011)."""
    a, b, c, d = counter
    low = np.uint64(0xFFFFFFFF)
    for turn in range(10):
        first, second = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
        left = np.uint64(key[0] + turn * 0x9E3779B9 & 0xFFFFFFFF)
        right = np.uint64(key[1] + turn * 0xBB67AE85 & 0xFFFFFFFF)
        a, b = (second >> np.uint64(32)) ^ b ^ left, second & low
        c, d = (first >> np.uint64(32)) ^ d ^ right, first & low
    return [a, b, c, d]
