"""`layer_norm` sums twice in 16 lanes and a tree, so only the row's length matters; and `gelu`, which follows it."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.cpus import every_cpu
from tests.ops.numbers import same, wide
from zerokl import ops
from zerokl.errors import ShapeError, UnsupportedDtype, UnsupportedModel
from zerokl.ops import reference, reference_hybrid


# Widths: below, at and above the 16 lanes, with every kind of rest; rows: one, and more than one task's (16,384 / 96).
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (3, 15), (2, 16), (5, 31), (2, 100), (400, 96), (2, 1000)])
def test_every_cpu_equals_the_reference(rows, width):
    x, weight, bias = wide(1, rows, width), wide(2, width), wide(3, width)
    x[-1] = 3
    expected, curved = reference.layer_norm(x, weight, bias, 1e-5), reference_hybrid.gelu(x)
    for name in every_cpu():
        assert same(ops.layer_norm(x, weight, bias, 1e-5), expected), name
        assert same(ops.gelu(x), curved), name


def test_any_row_any_batch_same_bits():
    x, weight, bias = wide(1, 600, 48), wide(2, 48), wide(3, 48)
    together, curved = ops.layer_norm(x, weight, bias, 1e-6), ops.gelu(x)
    for row in range(0, 600, 37):
        assert same(ops.layer_norm(x[row : row + 1], weight, bias, 1e-6), together[row : row + 1])
        assert same(ops.gelu(x[row : row + 1]), curved[row : row + 1])


def test_it_is_the_norm_of_float64():
    random = np.random.default_rng(1)
    x, weight, bias = (random.standard_normal(shape).astype(np.float32) for shape in ((50, 300), 300, 300))
    x += 5  # a mean that isn't small beside the spread
    wide_x = x.astype(np.float64)
    centred = wide_x - wide_x.mean(axis=1, keepdims=True)
    exact = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5) * weight + bias
    assert np.abs(ops.layer_norm(x, weight, bias, 1e-5) - exact).max() < 3e-6


def test_the_inputs_show_another_order_of_the_sums():
    x, weight, bias = wide(1, 400, 96), wide(2, 96), wide(3, 96)
    turned = reference.layer_norm(*(part[..., ::-1].copy() for part in (x, weight, bias)), 1e-5)[:, ::-1]
    assert (turned != reference.layer_norm(x, weight, bias, 1e-5)).mean() > 0.05


def test_gelu_is_geglu_with_an_up_of_one():
    x = wide(1, 40, 33)
    assert same(ops.gelu(x), ops.geglu(np.hstack([x, np.ones_like(x)])))


def test_nan_stays_in_its_row():
    x, weight, bias = wide(1, 6, 32), wide(2, 32), wide(3, 32)
    x[4, 0] = np.nan
    y = ops.layer_norm(x, weight, bias, 1e-5)
    assert np.isnan(y[4]).all()
    assert np.isfinite(np.delete(y, 4, axis=0)).all()


def test_empty_and_wrong_arrays():
    weight, bias = wide(2, 8), wide(3, 8)
    assert ops.layer_norm(wide(1, 0, 8), weight, bias, 1e-5).shape == (0, 8)
    assert ops.gelu(wide(1, 0, 8)).shape == (0, 8)
    with pytest.raises(ShapeError, match=r"x must be \[3, 8\]"):
        ops.layer_norm(wide(1, 3, 9), weight, bias, 1e-5)
    with pytest.raises(ShapeError, match=r"bias must be \[8\]"):
        ops.layer_norm(wide(1, 3, 8), weight, wide(3, 7), 1e-5)
    with pytest.raises(UnsupportedDtype, match="float16"):
        ops.gelu(wide(1, 3, 8).astype(np.float16))


class Tensor:
    """Anything that isn't numpy's is the GPU's."""


@pytest.mark.parametrize(
    "call",
    [
        lambda x: ops.rope(x, x, x),
        lambda x: ops.attention(x, None, 1.0, sinks=x),
    ],
)
def test_what_the_gpu_lacks_is_refused_in_one_sentence(call):
    with pytest.raises(UnsupportedModel, match=r"isn't there on the GPU yet; run this model with --device cpu$"):
        call(Tensor())
