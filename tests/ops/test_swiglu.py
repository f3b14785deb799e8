"""`swiglu` element by element, at every size of gate."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.cpus import every_cpu
from tests.ops.numbers import same, wide
from zerokl import ops
from zerokl.errors import ShapeError, UnsupportedDtype
from zerokl.ops import reference

EXTREMES = np.array([0, -0.0, 1e-40, 88.7, 88.8, -88.7, -88.8, -104, 1e30, -1e30, np.inf, -np.inf, np.nan], np.float32)


# Widths: less than 16, 16 and a rest; rows: one, and more than one task's (16,384 / 40).
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (3, 16), (2, 39), (900, 40)])
def test_every_cpu_equals_the_reference(rows, width):
    x = wide(1, rows, 2 * width)
    expected = reference.swiglu(x)
    for name in every_cpu():
        assert same(ops.swiglu(x), expected), name


def test_extreme_gates_equal_the_reference():
    gate_up = np.concatenate([EXTREMES, np.full_like(EXTREMES, 2)])[None]
    expected = reference.swiglu(gate_up)
    assert expected[0, 9] == 0
    assert expected[0, 10] == np.inf
    for name in every_cpu():
        assert same(ops.swiglu(gate_up), expected), name


def test_values_are_those_of_float64_within_two_units():
    gate = np.linspace(-30, 30, 20001, dtype=np.float32)
    y = ops.swiglu(np.concatenate([gate, np.ones_like(gate)])[None])[0]
    exact = gate.astype(np.float64) / (1 + np.exp(-gate.astype(np.float64)))
    assert (np.abs(y - exact) / np.spacing(np.abs(y) + np.float32(1e-30))).max() < 2.5


def test_any_row_any_batch_same_bits():
    x = wide(1, 1000, 64)
    together = ops.swiglu(x)
    for row in (0, 511, 512, 999):
        assert same(ops.swiglu(x[row : row + 1]), together[row : row + 1])


# Widths: whole panels in one tile and in several; a width that isn't whole panels takes another way.
@pytest.mark.parametrize(("rows", "width", "depth"), [(1, 16, 9), (30, 224, 20), (13, 20, 32)])
def test_a_gated_linear_is_its_two_operations(rows, width, depth):
    x, weight, bias = wide(1, rows, depth), wide(2, 2 * width, depth), wide(3, 2 * width)
    matrix, exact = ops.pack(weight, "bfloat16"), reference.pack(weight, "bfloat16")
    plain = reference.swiglu(reference.linear(x, exact))
    biased = reference.swiglu(reference.linear(x, exact, bias=bias))
    for name in every_cpu():
        assert same(ops.gated_linear(x, matrix), plain), name
        assert same(ops.gated_linear(x, matrix, bias=bias), biased), name


def test_a_gated_linear_names_wrong_arrays():
    matrix = ops.pack(wide(1, 6, 8), "float32")
    assert ops.gated_linear(wide(1, 0, 8), matrix).shape == (0, 3)
    with pytest.raises(ShapeError, match="x must be"):
        ops.gated_linear(wide(1, 2, 7), matrix)
    with pytest.raises(ShapeError, match="bias"):
        ops.gated_linear(wide(1, 2, 8), matrix, bias=wide(1, 3))
    with pytest.raises(ShapeError, match=r"\[2F, K\]"):
        ops.gated_linear(wide(1, 2, 8), ops.pack(wide(1, 5, 8), "float32"))


def test_empty_and_wrong_arrays():
    assert ops.swiglu(wide(1, 0, 8)).shape == (0, 4)
    assert ops.swiglu(wide(1, 3, 0)).shape == (3, 0)
    with pytest.raises(ShapeError, match=r"\[T, 2F\]"):
        ops.swiglu(wide(1, 3, 7))
    with pytest.raises(UnsupportedDtype, match="float64"):
        ops.swiglu(wide(1, 3, 8).astype(np.float64))
