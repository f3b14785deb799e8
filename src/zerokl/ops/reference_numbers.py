"""What the oracle counts with: a true fma, the sixteen lanes, the elementary functions of `math.rs` step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from zerokl.ops.kv import F32

F64 = NDArray[np.float64]

LANES = 16


def f32(value: Any) -> Any:
    return np.asarray(value, np.float32)[()]


LOG2_E, LOG2_E_TAIL, LN_2 = f32(1.4426950408889634), f32(1.925963e-8), f32(0.6931471805599453)


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


def fold(lanes: F32) -> Any:
    """The tree over the 16 lanes of the last axis: (i, i+8), (i, i+4), (i, i+2), (0, 1)."""
    for half in (8, 4, 2, 1):
        lanes = lanes[..., :half] + lanes[..., half : 2 * half]
    return lanes[..., 0]


def lane_sum(values: F32) -> Any:
    """Sum over the last axis: 16 lanes by index mod 16, each in order from +0, then the tree.

    Counting the index from elsewhere would give the same: the tree does not change when its lanes are rotated.
    """
    lanes = np.zeros((*values.shape[:-1], LANES), np.float32)
    for i in range(values.shape[-1]):
        lanes[..., i % LANES] += values[..., i]
    return fold(lanes)


# --- f32 functions -------------------------------------------------------------------------------------------------

EXP2 = f32([LN_2, 0.2402265, 0.05550357, 0.009618031, 0.001339089, 0.00015469761])
LOG2 = f32([LOG2_E, -0.72134733, 0.48089823, -0.36069664, 0.28856742, -0.2396173, 0.20460032, -0.19106336])
LOG2 = np.append(LOG2, f32([0.18617734, -0.109951]))
TANH = f32([-0.33333316, 0.13332586, -0.05385231, 0.021071678, -0.0062742396])


def horner(x: Any, coefficients: F32) -> Any:
    """c[0] + x * (c[1] + x * (...)), one fma per step."""
    y = coefficients[-1]
    for c in coefficients[-2::-1]:
        y = fma(y, x, c)
    return y


@np.errstate(all="ignore")
def exp2(x: Any) -> Any:
    x = clamp(x, f32(-160), f32(129))
    whole = whole_number(x)
    return scaled(x - whole, whole)


@np.errstate(all="ignore")
def exp(x: Any) -> Any:
    """As exp2, with x * log2(e) in two parts."""
    x = clamp(x, f32(-110), f32(90))
    whole = whole_number(x * LOG2_E)
    return scaled(fma(x, LOG2_E_TAIL, fma(x, LOG2_E, -whole)), whole)


def clamp(x: Any, low: Any, high: Any) -> Any:
    """A NaN stays."""
    x = np.where(low > x, low, x)
    return np.where(high < x, high, x)


def whole_number(x: Any) -> Any:
    """The nearest integer, ties to even: adding 1.5 * 2^23 leaves no room for a fraction."""
    return (x + f32(12582912)) - f32(12582912)


def scaled(fraction: Any, whole: Any) -> Any:
    """2^(fraction + whole), |fraction| <= 1/2: by two factors, of which only the second can round."""
    half = whole_number(whole * f32(0.5))
    y = fma(fraction, horner(fraction, EXP2), 1)
    return (y * power_of_two(half) * power_of_two(whole - half))[()]


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


@np.errstate(all="ignore")
def tanh(u: F32) -> Any:
    """Near 0 a polynomial, else (1 - t) / (1 + t) with t = exp2(-2 |u| log2 e)."""
    size, square = np.abs(u), u * u
    small = fma(size * square, horner(square, TANH), size)
    t = exp2(size * (f32(-2) * LOG2_E))
    y = np.where(size < f32(0.55), small, (f32(1) - t) / (f32(1) + t))
    return np.where(u < 0, -y, y)


# --- f64 functions: plain operations, no fma -----------------------------------------------------------------------

HALF_PI = (1.570796012878418, 3.139164164167596e-7, 6.223371969669989e-14, 2.0222662487959506e-21)
SIN = [(-1) ** i / denominator for i, denominator in enumerate((6, 120, 5040, 362880, 39916800, 6227020800), 1)]
SIN += [-1 / 1307674368000, 1 / 355687428096000]
COS = [(-1) ** i / denominator for i, denominator in enumerate((2, 24, 720, 40320, 3628800, 479001600), 1)]
COS += [-1 / 87178291200, 1 / 20922789888000, -1 / 6402373705728000]


def sin_cos(x: F64) -> tuple[F64, F64]:
    """x less whole quarter turns, in parts of pi / 2; two Taylor series; the quarter says which is which."""
    quarter = (x * 0.6366197723675814 + 6755399441055744.0) - 6755399441055744.0
    r = x
    for part in HALF_PI:
        r = r - quarter * part
    square = r * r
    sin, cos = r + r * square * taylor(square, SIN), 1.0 + square * taylor(square, COS)
    turns = quarter.astype(np.int64) & 3
    return np.choose(turns, [sin, cos, -sin, -cos]), np.choose(turns, [cos, -sin, -cos, sin])


def taylor(x: F64, coefficients: list[float]) -> Any:
    y: Any = 0.0
    for c in coefficients[::-1]:
        y = y * x + c
    return y


# --- narrow numbers ------------------------------------------------------------------------------------------------


def e4m3(codes: Any) -> F32:
    """The numbers of codes: bias 7, subnormals, no infinity."""
    codes = np.asarray(codes, np.int64)
    exponent, fraction = codes >> 3 & 15, codes & 7
    magnitude = np.where(exponent > 0, np.ldexp(8.0 + fraction, exponent - 10), np.ldexp(1.0 * fraction, -9))
    magnitude = np.where(codes & 127 == 127, np.nan, magnitude)
    return np.where(codes >> 7, -magnitude, magnitude).astype(np.float32)


@np.errstate(all="ignore")
def narrow(values: F32, dtype: Any, scale: float) -> Any:
    """As a cache of this dtype keeps them: float32, bits of bfloat16, or codes of e4m3 of values / scale."""
    if dtype == np.float32:
        return values
    if dtype == np.uint16:
        bits = values.view(np.uint32)
        rounded = (bits + np.uint32(0x7FFF) + (bits >> 16 & 1)) >> 16
        return np.where(np.isnan(values), bits >> 16 | 0x40, rounded).astype(np.uint16)
    scaled = values / f32(scale)
    table = e4m3(np.arange(127)).astype(np.float64)
    magnitude = np.minimum(np.abs(scaled.astype(np.float64)), 448.0)
    above = np.clip(np.searchsorted(table, magnitude), 1, 126)
    low, high = magnitude - table[above - 1], table[above] - magnitude
    down = (low < high) | ((low == high) & (above % 2 == 1))
    codes = np.where(np.isnan(scaled), 127, above - down)
    return (codes | np.signbit(scaled).astype(np.int64) << 7).astype(np.uint8)


def widen(kept: Any, scale: float) -> F32:
    """The numbers that attention reads."""
    if kept.dtype == np.float32:
        return kept  # type: ignore[no-any-return]
    if kept.dtype == np.uint16:
        return (kept.astype(np.uint32) << 16).view(np.float32)  # type: ignore[no-any-return]
    return e4m3(kept) * f32(scale)  # type: ignore[no-any-return]
