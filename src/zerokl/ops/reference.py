"""The executable oracle: every operation in plain numpy, in the order that its contract states. Slow and obvious.

The CPU bodies equal this file bit for bit. Arrays go in and come out as the operations' own (f32), except that a
weight is its plain [N, K] array. Loops run over the dimension whose order matters, numpy over all the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zerokl.ops.attention import CHUNK, score_factors
from zerokl.ops.kv import F32, LayerKV
from zerokl.ops.sample import GREEDY_BELOW, Draw
from zerokl.ops.score import BLOCK
from zerokl.types import Logprobs, LogprobSpec

LANES = 16

# --- numbers -------------------------------------------------------------------------------------------------------


def f32(value: Any) -> Any:
    return np.asarray(value, np.float32)[()]


LOG2_E, LN_2 = f32(1.4426950408889634), f32(0.6931471805599453)


@np.errstate(all="ignore")
def fma(a: Any, b: Any, c: Any) -> Any:
    """a * b + c with one rounding, for f32 scalars and arrays, subnormals included.

    The product is exact in float64. The sum is rounded to float64 *to odd* (an inexact sum ends in a 1 bit), and a
    number rounded to odd with at least two bits to spare rounds on as the exact number would.
    """
    product, c = np.float64(f32(a)) * np.float64(f32(b)), np.float64(f32(c))
    total = np.asarray(product + c)
    shadow = total - product
    lost = (product - (total - shadow)) + (c - shadow)  # exactly what the sum rounded away
    even = total.view(np.int64) & 1 == 0
    odd = np.nextafter(total, np.copysign(np.inf, lost))
    return np.where(np.isfinite(total) & (lost != 0) & even, odd, total).astype(np.float32)[()]


def fold(lanes: F32) -> F32:
    """The tree over the 16 lanes of the last axis: (i, i+8), (i, i+4), (i, i+2), (0, 1)."""
    for half in (8, 4, 2, 1):
        lanes = lanes[..., :half] + lanes[..., half : 2 * half]
    return lanes[..., 0]


def lane_sum(values: F32, first: int = 0) -> F32:
    """Sum over the last axis: 16 lanes by (first + index) mod 16, each in order from +0, then the tree."""
    lanes = np.zeros((*values.shape[:-1], LANES), np.float32)
    for i in range(values.shape[-1]):
        lanes[..., (first + i) % LANES] += values[..., i]
    return fold(lanes)


def safe(maximum: F32) -> F32:
    """What is subtracted for a maximum: 0 where it is -inf, so that no inf - inf arises."""
    return np.where(maximum == -np.inf, f32(0), maximum)


# --- elementary functions: crates/zerokl-kernels/src/math.rs, step by step ------------------------------------------

EXP2 = f32([LN_2, 0.2402265, 0.05550357, 0.009618031, 0.001339089, 0.00015469761])
LOG2 = f32(
    [LOG2_E, -0.72134733, 0.48089823, -0.36069664, 0.28856742]
    + [-0.2396173, 0.20460032, -0.19106336, 0.18617734, -0.109951]
)
TANH = f32([-0.33333316, 0.13332586, -0.05385231, 0.021071678, -0.0062742396])


def horner(x: Any, coefficients: F32) -> Any:
    """c[0] + x * (c[1] + x * (...)), one fma per step."""
    y = coefficients[-1]
    for c in coefficients[-2::-1]:
        y = fma(y, x, c)
    return y


@np.errstate(all="ignore")
def exp2(x: Any) -> Any:
    x = np.where(f32(-160) > x, f32(-160), x)
    x = np.where(f32(129) < x, f32(129), x)
    whole = whole_number(x)
    fraction = x - whole
    half = whole_number(whole * f32(0.5))
    return (fma(fraction, horner(fraction, EXP2), 1) * power_of_two(half) * power_of_two(whole - half))[()]


def whole_number(x: Any) -> Any:
    """The nearest integer, ties to even: adding 1.5 * 2^23 leaves no room for a fraction."""
    return (x + f32(12582912)) - f32(12582912)


def power_of_two(n: Any) -> Any:
    return np.ldexp(f32(1), np.nan_to_num(n).astype(np.int32))


@np.errstate(all="ignore")
def log2(x: Any) -> Any:
    x = np.asarray(x, np.float32)
    tiny = x < np.finfo(np.float32).tiny
    bits = np.where(tiny, x * f32(2.0**23), x).view(np.int32)
    exponent = (bits - f32(np.sqrt(0.5)).view(np.int32)) >> 23
    fraction = (bits - (exponent << 23)).view(np.float32) - f32(1)
    whole = exponent.astype(np.float32) - np.where(tiny, f32(23), f32(0))
    y = fma(fraction, horner(fraction, LOG2), whole)
    y = np.where(x < np.inf, y, x)
    y = np.where(x < 0, f32(np.nan), y)
    return np.where(x == 0, f32(-np.inf), y)[()]


def tanh(u: F32) -> F32:
    """Near 0 a polynomial, else (1 - t) / (1 + t) with t = exp2(-2 |u| log2 e)."""
    size, square = np.abs(u), u * u
    small = fma(size * square, horner(square, TANH), size)
    t = exp2(size * (f32(-2) * LOG2_E))
    y = np.where(size < f32(0.55), small, (f32(1) - t) / (f32(1) + t))
    return np.where(u < 0, -y, y)


# --- the cache and attention ---------------------------------------------------------------------------------------


def store_kv(kv: LayerKV, k: F32, v: F32) -> None:
    page_size = kv.ragged.page_size
    for row, slot in enumerate(kv.ragged.slots):
        if slot >= 0:
            kv.k[slot // page_size, :, :, slot % page_size] = k[row]
            kv.v[slot // page_size, :, slot % page_size, :] = v[row]


@np.errstate(all="ignore")
def attention(
    q: F32,
    kv: LayerKV,
    scale: float,
    *,
    window: int | None = None,
    softcap: float | None = None,
    sinks: F32 | None = None,
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
            y[own] = attend(q[own], positions, k, v, factors, window, sinks)
    return y.reshape(rows, heads * size)


def gather(kv: LayerKV, pages: NDArray[np.int32], num_keys: int, heads: int) -> tuple[F32, F32]:
    """Keys and values of one sequence as plain [num_keys, H, D], one copy per query head."""
    positions = np.arange(num_keys)
    page, offset = pages[positions // kv.ragged.page_size], positions % kv.ragged.page_size
    group = heads // kv.k.shape[1]
    return kv.k[page, :, :, offset].repeat(group, axis=1), kv.v[page, :, offset, :].repeat(group, axis=1)


def attend(
    q: F32,
    positions: NDArray[np.int32],
    k: F32,
    v: F32,
    factors: tuple[float, float],
    window: int | None,
    sinks: F32 | None,
) -> F32:
    rows, heads, size = q.shape
    m = np.full((rows, heads), -np.inf, np.float32)
    total, out = np.zeros((rows, heads), np.float32), np.zeros((rows, heads, size), np.float32)
    for start in range(0, len(k), CHUNK):
        keys = np.arange(start, min(start + CHUNK, len(k)))
        visible = keys <= positions[:, None]
        if window is not None:
            visible &= keys > positions[:, None] - window
        part = chunk(q, k[keys], v[keys], visible[:, None, :], factors)
        merged = merge((m, total, out), part)
        seen = visible.any(axis=1)  # a chunk that a row does not see leaves the row alone
        m, total = np.where(seen[:, None], merged[0], m), np.where(seen[:, None], merged[1], total)
        out = np.where(seen[:, None, None], merged[2], out)
    if sinks is not None:
        m, total, out = merge((m, total, out), (sinks * LOG2_E, np.ones_like(total), np.zeros_like(out)))
    return np.where((positions >= 0)[:, None, None], out / total[..., None], f32(0))


State = tuple[F32, F32, F32]
"""(maximum [T, H], sum [T, H], weighted values [T, H, D]) of the keys seen so far."""


def chunk(q: F32, k: F32, v: F32, visible: NDArray[np.bool_], factors: tuple[float, float]) -> State:
    scores = np.zeros((*q.shape[:2], len(k)), np.float32)
    for d in range(q.shape[2]):
        scores = fma(q[:, :, d, None], k[:, :, d].T[None], scores)
    scores = scores * f32(factors[0])
    if factors[1]:
        scores = tanh(scores) * f32(factors[1])
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


# --- logits --------------------------------------------------------------------------------------------------------


@np.errstate(all="ignore")
def score(logits: F32, targets: NDArray[np.int32], spec: LogprobSpec) -> Logprobs:
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


def log_softmax(x: F32) -> F32:
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
def sample(logits: F32, draws: Sequence[Draw]) -> NDArray[np.int32]:
    ids = np.empty(len(draws), np.int32)
    for row, (x, draw) in enumerate(zip(logits, draws, strict=True)):
        params = draw.params
        x = process_row(x, draw)
        noise = gumbel(random_words(params.seed, params.stream, draw.position, len(x)))
        ids[row] = np.argmax(x if params.temperature < GREEDY_BELOW else x + noise)
    return ids


@np.errstate(all="ignore")
def process(logits: F32, draws: Sequence[Draw]) -> F32:
    rows = [process_row(x, draw) for x, draw in zip(logits, draws, strict=True)]
    return np.stack(rows) if rows else logits.copy()


def process_row(x: F32, draw: Draw) -> F32:
    params, x = draw.params, penalised(x, draw)
    for token, bias in params.logit_bias:
        x[token] += f32(bias)
    if draw.mask is not None:
        allowed = np.unpackbits(np.frombuffer(draw.mask, np.uint8), bitorder="little")[: len(x)]
        x = np.where(allowed == 1, x, f32(-np.inf))
    if params.temperature < GREEDY_BELOW:
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


def gumbel(r: NDArray[np.uint32]) -> F32:
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
        keys = [np.uint64((k + turn * step) & 0xFFFFFFFF) for k, step in zip(key, (0x9E3779B9, 0xBB67AE85), strict=True)]
        first, second = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
        a, b, c, d = (second >> np.uint64(32)) ^ b ^ keys[0], second & low, (first >> np.uint64(32)) ^ d ^ keys[1], first & low
    return [a, b, c, d]
