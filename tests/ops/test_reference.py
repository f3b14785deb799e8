"""The oracle's own ground: a true fma against exact fractions, and elementary functions against float64."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from zerokl.ops import reference
from zerokl.ops.kv import F32

# --- fma -----------------------------------------------------------------------------------------------------------


def exact_fma(a: np.float32, b: np.float32, c: np.float32) -> float:
    """a * b + c over the rationals, then rounded to the nearest float32, ties to even."""
    exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    if exact == 0:
        return 0.0
    # The unit in the last place: 2^-149 for subnormals, else 24 bits below the leading one.
    exponent = exact_log2(abs(exact))
    unit = Fraction(2) ** max(exponent - 23, -149)
    rounded = float(round(exact / unit) * unit)  # round() takes ties to even; the product has at most 25 bits
    return math.copysign(math.inf, rounded) if abs(rounded) >= 2.0**128 else rounded


def exact_log2(x: Fraction) -> int:
    """floor(log2 x)."""
    guess = x.numerator.bit_length() - x.denominator.bit_length()
    return guess if Fraction(2) ** guess <= x else guess - 1


def any_bits(count: int) -> F32:
    """All exponents, both signs, subnormals; no infinity, no NaN."""
    values = np.random.default_rng(7).integers(0, 2**32, (3, count), dtype=np.uint32).view(np.float32)
    return np.where(np.isfinite(values), values, np.float32(1)).astype(np.float32)


def cancelling(count: int) -> F32:
    """c is nearly -a * b, so what the product's low bits are decides everything."""
    rng = np.random.default_rng(8)
    a, b = rng.standard_normal((2, count)).astype(np.float32)
    return np.stack([a, b, -(a * b) * (1 + np.float32(2.0**-22) * rng.integers(-2, 3, count)).astype(np.float32)])


def near_ties(count: int) -> F32:
    """c + a * b lies 2^-70 from the middle of two float32: float64 cannot see on which side."""
    rng = np.random.default_rng(9)
    c = (1 + rng.integers(0, 2**23, count) * 2.0**-23).astype(np.float32)
    e = np.float32(2.0**-23) * rng.integers(1, 4, count).astype(np.float32)
    # (1 + e) (1 - e) 2^-24 = 2^-24 - e^2 2^-24: just below half a unit of c; negative a: just above minus a half.
    return np.stack([(1 + e) * np.float32(2.0**-24) * rng.choice(np.float32([1, -1]), count), 1 - e, c])


def tiny(count: int) -> F32:
    """Products and sums among subnormals."""
    rng = np.random.default_rng(10)
    a, b = (rng.standard_normal((2, count)) * 2.0**-70).astype(np.float32)
    return np.stack([a, b, (rng.standard_normal(count) * 2.0**-140).astype(np.float32)])


FAMILIES = {"any bits": any_bits, "cancelling": cancelling, "near ties": near_ties, "subnormal": tiny}


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_fma_rounds_once(family):
    a, b, c = family(3000)
    expected = np.array([exact_fma(*row) for row in zip(a, b, c, strict=True)], np.float32)
    assert np.array_equal(reference.fma(a, b, c), expected)


def test_float64_multiply_add_is_no_fma_and_these_inputs_show_it():
    a, b, c = near_ties(3000)
    twice_rounded = (a.astype(np.float64) * b + c).astype(np.float32)
    assert (twice_rounded != reference.fma(a, b, c)).mean() > 0.3


def test_fma_of_special_values_is_ieee():
    inf, nan = np.inf, np.nan
    with np.errstate(all="ignore"):
        a, b, c = np.float32([[inf, inf, 0, 1, 2.0**127, -0.0], [1, 0, inf, 1, 4, 1], [-1, 1, 1, nan, 0, 0]])
        found = reference.fma(a, b, c)
    assert np.array_equal(found, np.float32([inf, nan, nan, nan, inf, 0]), equal_nan=True)
    assert not np.signbit(reference.fma(-0.0, 1.0, 0.0))
    assert np.signbit(reference.fma(-0.0, 1.0, -0.0))
    assert np.signbit(reference.fma(-(2.0**-100), 2.0**-100, 0.0))  # underflow keeps its sign


def test_fma_takes_scalars_and_broadcasts():
    assert reference.fma(2, 3, 4) == 10
    assert reference.fma(np.ones((2, 1)), np.ones(3), 1).shape == (2, 3)


# --- order ---------------------------------------------------------------------------------------------------------


def test_lane_sum_is_sixteen_lanes_by_index_and_one_tree():
    x = np.random.default_rng(1).standard_normal(100).astype(np.float32)
    for first in (0, 5):  # counting from elsewhere is the same: the tree does not change when its lanes are rotated
        lanes = [np.float32(0)] * 16
        for i, value in enumerate(x):
            lanes[(first + i) % 16] += value
        while len(lanes) > 1:
            half = len(lanes) // 2
            lanes = [lanes[i] + lanes[i + half] for i in range(half)]
        assert reference.lane_sum(x) == lanes[0]
    rows = np.random.default_rng(1).standard_normal((50, 100)).astype(np.float32)
    one_chain = np.add.accumulate(rows, axis=1)[:, -1]
    assert (reference.lane_sum(rows) != one_chain).mean() > 0.5  # so the order does matter


# --- elementary functions ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "exact", "low", "high", "units"),
    [
        (reference.exp2, np.exp2, -150, 128, 1.0),
        (reference.exp, np.exp, -103, 88.7, 1.0),
        (reference.log2, np.log2, 1e-45, 3e38, 1.5),
        (reference.tanh, np.tanh, -12, 12, 2.0),
    ],
)
def test_elementary_functions_are_close_to_float64(function, exact, low, high, units):
    rng = np.random.default_rng(2)
    near_zero, wide = rng.uniform(-1, 1, 20000), rng.uniform(low, high, 20000)
    x = np.float32(np.concatenate([near_zero, wide, np.geomspace(1e-44, 1, 2000)]))
    x = x[(x >= low) & (x <= high)]
    expected = exact(x.astype(np.float64))
    unit = np.spacing(np.abs(expected).astype(np.float32)).astype(np.float64)
    assert (np.abs(function(x) - expected) / unit).max() < units


def test_elementary_functions_of_special_values():
    inf, nan = np.float32(np.inf), np.float32(np.nan)
    assert reference.exp2(np.float32([-inf, inf, 0, -149, 127])).tolist() == [0, inf, 1, 2.0**-149, 2.0**127]
    assert reference.log2(np.float32([0, inf, 1, 2.0**-149])).tolist() == [-inf, inf, 0, -149]
    assert np.isnan([reference.exp2(nan), reference.log2(nan), reference.log2(np.float32(-1))]).all()
    assert reference.tanh(np.float32([-inf, inf, 0])).tolist() == [-1, 1, 0]


def test_sine_and_cosine_are_those_of_float64():
    x = np.concatenate([np.linspace(-50, 50, 5000), np.random.default_rng(3).uniform(0, 2.0**20, 5000)])
    sin, cos = reference.sin_cos(x)
    assert max(np.abs(sin - np.sin(x)).max(), np.abs(cos - np.cos(x)).max()) < 2.0**-50


# --- dense ---------------------------------------------------------------------------------------------------------


def test_packing_to_bf16_rounds_to_nearest_even():
    bits = np.uint32([0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0x7F7FFFFF, 0x00000001, 0x80008001])
    found = reference.pack(bits.view(np.float32)[None], "bfloat16").view(np.uint32) >> 16
    assert found.tolist() == [[0x3F80, 0x3F82, 0x3F81, 0x3F80, 0x7F80, 0x0000, 0x8001]]
    exact = np.arange(2**16, dtype=np.uint16)[None]
    assert np.array_equal(
        reference.pack(exact, "bfloat16").view(np.uint32) >> 16,
        exact | np.isnan(reference.pack(exact, "float32")) * 0x40,
    )


def test_linear_is_one_chain_of_fma_then_bias_then_residual():
    rng = np.random.default_rng(4)
    x, w, bias, residual = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 37), (3, 37), (3,), (2, 3)))
    found = reference.linear(x, w, bias=bias, residual=residual)
    for t in range(2):
        for n in range(3):
            y = np.float32(0)
            for k in range(37):
                y = np.float32(exact_fma(x[t, k], w[n, k], y))
            assert found[t, n] == y + bias[n] + residual[t, n]


def test_dense_operations_are_the_mathematical_ones():
    rng = np.random.default_rng(5)
    x, w = rng.standard_normal((3, 50)).astype(np.float32), rng.standard_normal(50).astype(np.float32)
    wide = x.astype(np.float64)
    norm = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + 1e-5) * w
    assert np.allclose(reference.rms_norm(x, w, 1e-5), norm, rtol=4e-7)
    assert np.allclose(reference.swiglu(x), wide[:, :25] / (1 + np.exp(-wide[:, :25])) * wide[:, 25:], rtol=4e-7)
    cos, sin = reference.rope_table(np.int32([0, 7, 90000]), np.float64([1, 0.01]))
    heads = x.reshape(3, 5, 10)
    for interleaved, pairs in ((False, [(0, 2), (1, 3)]), (True, [(0, 1), (2, 3)])):
        turned = reference.rope(heads, cos, sin, interleaved=interleaved)
        assert np.array_equal(turned[..., 4:], heads[..., 4:])
        for i, (a, b) in enumerate(pairs):
            angle = np.float64([0, 7, 90000])[:, None] * [1, 0.01][i]
            z = (heads[..., a] + 1j * heads[..., b]) * np.exp(1j * angle)
            assert np.allclose(turned[..., a] + 1j * turned[..., b], z, atol=1e-6)


# --- noise ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        # Random123's kat_vectors, philox 4x32 with 10 rounds
        ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_philox_gives_the_published_answers(counter, key, expected):
    words = reference.philox([np.array([word], np.uint64) for word in counter], (key[0], key[1]))
    assert [int(word[0]) for word in words] == expected


def test_gumbel_keeps_all_32_bits_at_both_ends():
    r = np.concatenate([np.arange(2000), 2**31 + np.arange(-1000, 1000), 2**32 - 1 - np.arange(2000)]).astype(np.uint32)
    u = (r.astype(np.longdouble) + 0.5) / 2**32
    exact = -np.log(-np.log1p(u - 1))
    found = reference.gumbel(r)
    assert np.isfinite(found).all()
    assert (np.abs(found - exact) < 4e-6).all()
    top = found[-2000:]  # likely winners: every draw has its own noise
    assert (np.diff(top) < 0).all()
