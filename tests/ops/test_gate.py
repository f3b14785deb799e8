"""Gates and factors, element by element."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.cpus import every_cpu
from tests.ops.numbers import same, wide
from zerokl import ops
from zerokl.errors import ShapeError, UnsupportedDtype
from zerokl.ops import reference_hybrid

EXTREMES = np.array([0, -0.0, 1e-40, 0.55, -0.55, 88.8, -88.8, -104, 1e30, -1e30, np.inf, -np.inf, np.nan], np.float32)
ACTIVATIONS = ("identity", "sigmoid", "silu")


# Widths: less than 16, 16 and a rest; rows: one, and more than one task's.
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (3, 16), (2, 39), (900, 40)])
def test_every_cpu_equals_the_reference(rows, width):
    x, gate, factors = wide(1, rows, width), wide(2, rows, 2 * width), wide(3, rows)
    half = gate[:, :width].copy()
    expected = [reference_hybrid.gated(x, half, activation) for activation in ACTIVATIONS]
    gelu, scaled = reference_hybrid.geglu(gate), reference_hybrid.scale(x, factors)
    capped = reference_hybrid.softcap(x, 3.3)
    for name in every_cpu():
        for activation, y in zip(ACTIVATIONS, expected, strict=True):
            assert same(ops.gated(x, half, activation), y), name
        assert same(ops.geglu(gate), gelu), name
        assert same(ops.scale(x, factors), scaled), name
        assert same(ops.scale(x, factors, residual=half), scaled + half), name
        assert same(ops.softcap(x, 3.3), capped), name


def test_extreme_gates_equal_the_reference():
    gate, two = EXTREMES[None], np.full_like(EXTREMES, 2)[None]
    for name in every_cpu():
        for activation in ACTIVATIONS:
            assert same(ops.gated(two, gate, activation), reference_hybrid.gated(two, gate, activation)), name
        assert same(ops.geglu(np.hstack([gate, two])), reference_hybrid.geglu(np.hstack([gate, two]))), name


def test_gelu_is_that_of_float64():
    gate = np.linspace(-12, 12, 20001, dtype=np.float32)
    y = ops.geglu(np.concatenate([gate, np.ones_like(gate)])[None])[0]
    g = gate.astype(np.float64)
    exact = g / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (g + 0.044715 * g**3)))
    assert np.abs(y - exact).max() < 6e-7  # measured 3e-7, where 1 + tanh cancels


def test_any_row_any_batch_same_bits():
    x, gate = wide(1, 1000, 64), wide(2, 1000, 64)
    gated, gelu, scaled = ops.gated(x, gate, "silu"), ops.geglu(x), ops.scale(x, x[:, 0].copy())
    for row in (0, 255, 256, 511, 999):
        one = slice(row, row + 1)
        assert same(ops.gated(x[one], gate[one], "silu"), gated[one])
        assert same(ops.geglu(x[one]), gelu[one])
        assert same(ops.scale(x[one], x[one, 0].copy()), scaled[one])


def test_a_number_scales_every_row():
    x = wide(1, 5, 7)
    assert same(ops.scale(x, 0.1), x * np.float32(0.1))


def test_empty_and_wrong_arrays():
    assert ops.geglu(wide(1, 0, 8)).shape == (0, 4)
    assert ops.gated(wide(1, 0, 8), wide(1, 0, 8)).shape == (0, 8)
    assert ops.scale(wide(1, 3, 0), 2.0).shape == (3, 0)
    with pytest.raises(ShapeError, match=r"\[T, 2F\]"):
        ops.geglu(wide(1, 3, 7))
    with pytest.raises(ShapeError, match="gate must be"):
        ops.gated(wide(1, 3, 7), wide(1, 3, 8))
    with pytest.raises(ShapeError, match="factor must be"):
        ops.scale(wide(1, 3, 7), wide(1, 4))
    with pytest.raises(UnsupportedDtype, match="float64"):
        ops.gated(wide(1, 3, 8).astype(np.float64), wide(1, 3, 8))
