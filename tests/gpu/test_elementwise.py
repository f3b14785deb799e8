"""Gates, factors and caps: in float32 the oracle's bits, else one rounding of them; a table of biases by distance."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.gpu.device import DEVICE, NARROW, normal, relative_error, same
from zerokl import ops
from zerokl.ops import reference, triton
from zerokl.ops import reference_hybrid as oracle
from zerokl.ops.triton.bias import distance_table


def wide(seed: int, *shape: int, factor: float = 1.0) -> np.ndarray:
    numbers = (np.random.default_rng(seed).standard_normal(shape) * factor).astype(np.float32)
    numbers.reshape(-1)[:4] = 0.0, -0.0, 100.0, -100.0
    return numbers


def on_device(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array).to(DEVICE)


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.cpu().numpy().tobytes()


@pytest.mark.parametrize("activation", ["identity", "sigmoid", "silu"])
def test_gates_have_the_oracles_bits(activation):
    x, gate = wide(1, 5, 300), wide(2, 5, 300, factor=9.0)
    assert bits(ops.gated(on_device(x), on_device(gate), activation)) == oracle.gated(x, gate, activation).tobytes()
    narrow = ops.gated(on_device(x).to(NARROW), on_device(gate), activation)
    assert narrow.dtype == NARROW
    assert relative_error(narrow.float(), torch.from_numpy(oracle.gated(x, gate, activation)).to(DEVICE)) < 1e-2


def test_gelus_have_the_oracles_bits():
    x = wide(3, 4, 200, factor=2.0)
    assert bits(ops.gelu(on_device(x))) == oracle.gelu(x).tobytes()
    assert bits(ops.geglu(on_device(x))) == oracle.geglu(x).tobytes()


@pytest.mark.parametrize("by_row", [False, True])
@pytest.mark.parametrize("added", [False, True])
def test_factors_have_the_oracles_bits_and_a_residual_takes_the_sum(by_row, added):
    x, residual = wide(4, 6, 70), wide(5, 6, 70) if added else None
    factor = wide(6, 6) if by_row else 0.3
    expected = oracle.scale(x, factor, residual=residual)
    given = None if residual is None else on_device(residual.copy())
    found = ops.scale(on_device(x), on_device(factor) if by_row else factor, residual=given)
    assert bits(found) == expected.tobytes()
    assert not added or found is given


def test_columns_are_views_that_operations_take():
    x = wide(7, 6, 100)
    left, middle, right = ops.columns(on_device(x), 20, 60)
    assert [part.shape[1] for part in (left, middle, right)] == [20, 40, 40]
    assert bits(ops.scale(middle, 2.0)) == oracle.scale(np.ascontiguousarray(x[:, 20:60]), 2.0).tobytes()
    expected = oracle.gated(x[:, 20:60], x[:, 60:], "silu")
    assert bits(ops.gated(middle, right, "silu")) == expected.tobytes()
    heads = middle.reshape(6, 4, 10)
    weight = normal(8, 10, dtype=torch.float32)
    assert same(ops.rms_norm(heads, weight, 1e-5), ops.rms_norm(heads.contiguous(), weight, 1e-5))


def test_columns_whose_neighbours_lie_apart_are_brought_together():
    """As a projection's every second number is: [T, heads, 2] cut in the middle."""
    x = wide(15, 6, 8)
    apart = on_device(x).reshape(6, 4, 2)[:, :, 1:].reshape(6, -1)
    assert apart.stride(1) == 2
    (together,) = ops.columns(apart)
    assert bits(ops.sigmoid(together)) == oracle.activated(np.ascontiguousarray(x[:, 1::2]), "sigmoid").tobytes()


def test_soft_caps_have_the_oracles_bits():
    x = wide(9, 3, 500, factor=40.0)
    assert bits(ops.softcap(on_device(x), 30.0)) == oracle.softcap(x, 30.0).tobytes()


def test_layer_norm_is_near_float64_for_any_rows():
    x, weight, bias = normal(10, 7, 96), *(normal(11 + i, 96, dtype=torch.float32) for i in range(2))
    found = triton.layer_norm(x, weight, bias, 1e-5)
    less = x.double() - x.double().mean(1, keepdim=True)
    exact = less / (less**2).mean(1, keepdim=True).add(1e-5).sqrt() * weight.double() + bias.double()
    assert relative_error(found, exact) < (1e-6 if torch.float32 == NARROW else 5e-3)
    assert same(triton.layer_norm(x[3:4].contiguous(), weight, bias, 1e-5), found[3:4])


def test_biases_by_distance_have_the_oracles_bits():
    r, profile = wide(13, 3, 2, 6), wide(14, 6, 40)
    found = distance_table(on_device(r), on_device(profile))
    expected = reference.distance_bias(r, profile, np.tile(np.arange(40), (3, 1)))
    assert bits(found) == expected.tobytes()
