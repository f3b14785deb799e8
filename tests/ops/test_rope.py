"""Rotary tables are right at every position, and a rotation depends on its own row alone."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest

from tests.ops.cpus import every_cpu
from tests.ops.numbers import same, wide
from zerokl import ops
from zerokl.errors import ShapeError, UnsupportedDtype
from zerokl.ops import reference

INV_FREQ = 10000.0 ** -(np.arange(16) / 16)
PI = Decimal("3.141592653589793238462643383279502884197169399375105820974944592307816406286")


def exact_cosine(angle: float) -> float:
    """cos of the float64 itself, from 60 digits: reduce by 2 pi, then the series."""
    with localcontext() as context:
        context.prec = 60
        x = Decimal(angle).remainder_near(2 * PI)
        term, total, n = Decimal(1), Decimal(1), 0
        while abs(term) > Decimal(10) ** -40:
            n += 2
            term = -term * x * x / (n * (n - 1))
            total += term
        return float(total)


def test_tables_equal_the_reference_for_every_size_of_position():
    positions = np.array([0, 1, 2, 63, 64, 8191, 131072, 2**20, 2**24 - 1, 2**31 - 1], np.int32)
    for scale in (1.0, 1.2079441541679836):
        cos, sin = ops.rope_table(positions, INV_FREQ, scale)
        expected_cos, expected_sin = reference.rope_table(positions, INV_FREQ, scale)
        assert same(cos, expected_cos)
        assert same(sin, expected_sin)


def test_cosines_are_the_correctly_rounded_ones_but_for_near_ties():
    positions = np.arange(0, 2_000_000, 2311, dtype=np.int32)
    cos, _ = ops.rope_table(positions, INV_FREQ[:5])
    exact = np.array([[exact_cosine(float(p) * f) for f in INV_FREQ[:5]] for p in positions])
    wrong = cos != exact.astype(np.float32)
    assert wrong.mean() < 1e-3
    assert np.abs(cos - exact).max() < 2.0**-24 * 1.01


def test_a_table_does_not_depend_on_the_other_positions():
    positions = np.arange(700, dtype=np.int32)
    cos, sin = ops.rope_table(positions, INV_FREQ)
    one_cos, one_sin = ops.rope_table(positions[511:512], INV_FREQ)
    assert same(one_cos, cos[511:512])
    assert same(one_sin, sin[511:512])


# Head sizes and rotated parts: all of the head, a part, fewer and more than 16 pairs, none.
@pytest.mark.parametrize(("heads", "size", "pairs"), [(1, 2, 1), (3, 64, 32), (2, 80, 20), (4, 24, 5), (2, 8, 0)])
@pytest.mark.parametrize("interleaved", [False, True])
def test_every_cpu_equals_the_reference(heads, size, pairs, interleaved):
    x = wide(1, 150, heads, size)
    cos, sin = ops.rope_table(np.arange(150, dtype=np.int32) * 77, INV_FREQ.repeat(2)[:pairs].copy())
    expected = reference.rope(x, cos, sin, interleaved=interleaved)
    for name in every_cpu():
        assert same(ops.rope(x, cos, sin, interleaved=interleaved), expected), name


def test_rotation_turns_by_the_angle():
    """One pair, a quarter turn and a half: (1, 0) goes to (0, 1), then to (-1, 0)."""
    cos, sin = ops.rope_table(np.array([0, 1, 2], np.int32), np.array([math.pi / 2]))
    y = ops.rope(np.tile(np.array([1, 0], np.float32), (3, 1, 1)), cos, sin)
    assert np.allclose(y[:, 0], [[1, 0], [0, 1], [-1, 0]], atol=1e-7)


def test_any_row_any_batch_same_bits():
    x = wide(1, 300, 3, 32)
    cos, sin = ops.rope_table(np.arange(300, dtype=np.int32), INV_FREQ)
    together = ops.rope(x, cos, sin)
    for row in (0, 84, 85, 170, 299):
        one = slice(row, row + 1)
        assert same(ops.rope(x[one], cos[one], sin[one]), together[one])


def test_empty_and_wrong_arrays():
    cos, sin = ops.rope_table(np.arange(3, dtype=np.int32), INV_FREQ)
    assert ops.rope(wide(1, 0, 2, 32), cos[:0], sin[:0]).shape == (0, 2, 32)
    with pytest.raises(ShapeError, match="head has 30"):
        ops.rope(wide(1, 3, 2, 30), cos, sin)
    with pytest.raises(ShapeError, match="cos must be"):
        ops.rope(wide(1, 4, 2, 32), cos, sin)
    with pytest.raises(ShapeError, match=r"\[T, H, D\]"):
        ops.rope(wide(1, 3, 32), cos, sin)
    with pytest.raises(UnsupportedDtype, match="positions"):
        ops.rope_table(np.arange(3), INV_FREQ)
    with pytest.raises(UnsupportedDtype, match="inv_freq"):
        ops.rope_table(np.arange(3, dtype=np.int32), INV_FREQ.astype(np.float32))
