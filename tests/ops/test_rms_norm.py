"""`rms_norm` sums in 16 lanes and a tree, so only the row's length matters."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.cpus import every_cpu
from tests.ops.numbers import same, wide
from zerokl import ops
from zerokl.errors import ShapeError, UnsupportedDtype
from zerokl.ops import reference


# Widths: below, at and above the 16 lanes, with every kind of rest; rows: one, and more than one task's (16,384 / 96).
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (3, 15), (2, 16), (5, 31), (2, 100), (400, 96), (2, 1000)])
def test_every_cpu_equals_the_reference(rows, width):
    x, weight = wide(1, rows, width), wide(2, width)
    x[-1] = 0
    expected = reference.rms_norm(x, weight, 1e-5)
    for name in every_cpu():
        assert same(ops.rms_norm(x, weight, 1e-5), expected), name


def test_any_row_any_batch_same_bits():
    x, weight = wide(1, 600, 48), wide(2, 48)
    together = ops.rms_norm(x, weight, 1e-6)
    for row in range(0, 600, 37):
        assert same(ops.rms_norm(x[row : row + 1], weight, 1e-6), together[row : row + 1])
    assert same(ops.rms_norm(x.reshape(4, 50, 3, 48), weight, 1e-6), together.reshape(4, 50, 3, 48))


def test_the_inputs_show_another_order_of_the_sum():
    x, weight = wide(1, 400, 96), wide(2, 96)
    turned = reference.rms_norm(x[:, ::-1].copy(), weight[::-1].copy(), 1e-5)[:, ::-1]
    assert (turned != reference.rms_norm(x, weight, 1e-5)).mean() > 0.05


def test_overflow_and_nan_stay_in_their_row():
    x, weight = wide(1, 6, 32), wide(2, 32)
    x[2, 3], x[4, 0] = 3e30, np.nan
    y = ops.rms_norm(x, weight, 1e-5)
    assert same(y, reference.rms_norm(x, weight, 1e-5))
    assert np.isnan(y[4]).all()
    assert np.isfinite(np.delete(y, 4, axis=0)).all()


def test_empty_and_wrong_arrays():
    weight = wide(2, 8)
    assert ops.rms_norm(wide(1, 0, 8), weight, 1e-5).shape == (0, 8)
    with pytest.raises(ShapeError, match=r"x must be \[3, 8\]"):
        ops.rms_norm(wide(1, 3, 9), weight, 1e-5)
    with pytest.raises(UnsupportedDtype, match="float16"):
        ops.rms_norm(wide(1, 3, 8).astype(np.float16), weight, 1e-5)
