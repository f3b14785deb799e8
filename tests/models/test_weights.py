"""The loader: every tensor used once, every parameter filled once, and one error that says all that is wrong."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from tests.models.memory import MemoryCheckpoint, MemoryTensor, tiny_checkpoint, tiny_model
from zerokl import models, ops
from zerokl.config import Config
from zerokl.errors import CheckpointError
from zerokl.models.weights import W, load, sizes, spread, vector

CONFIG = SimpleNamespace(axes={"E": 4, "H": 2, "K": 1, "D": 3}, num_layers=2)


def stored(**shapes: tuple[int, ...]) -> MemoryCheckpoint:
    """Tensors of consecutive numbers, no two alike."""
    tensors, first = {}, 0
    for name, shape in shapes.items():
        tensors[name] = MemoryTensor(np.arange(first, first + np.prod(shape), dtype=np.float32).reshape(shape))
        first += int(np.prod(shape))
    return MemoryCheckpoint({}, tensors)


def rows(matrix: ops.Matrix) -> np.ndarray:
    return ops.embedding(matrix, np.arange(matrix.shape[0], dtype=np.int32))


def test_parts_are_stacked_in_the_order_of_the_braces():
    checkpoint = stored(v=(3, 4), q=(6, 4), k=(3, 4))
    parameters = load([W("{q,k,v}", "qkv", "{H,K,K}·D E")], [], CONFIG, checkpoint)
    expected = np.concatenate([checkpoint.tensors[name].stored for name in "qkv"])
    assert rows(parameters.qkv).tobytes() == expected.tobytes()


def test_layers_are_filled_in_order():
    checkpoint = stored(a0=(4,), a1=(4,))
    parameters = load([W("a{i}", "layers.{i}.norm", "E", vector)], [], CONFIG, checkpoint)
    assert [layer.norm.tolist() for layer in parameters.layers] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_row_whose_condition_is_false_is_none_and_its_tensor_unused():
    table = [W("norm", "norm", "E", vector), W("bias", "bias", "E", vector, when=lambda config: False)]
    assert load(table, [], CONFIG, stored(norm=(4,))).bias is None
    with pytest.raises(CheckpointError, match="1 tensors unused: bias"):
        load(table, [], CONFIG, stored(norm=(4,), bias=(4,)))


def test_one_error_lists_all_that_is_missing_misshapen_and_unused():
    table = [W("{q,k}", "qk", "{H,K}·D E"), W("norm", "norm", "E", vector), W("out", "out", "E H·D")]
    with pytest.raises(CheckpointError) as caught:
        load(table, ["old"], CONFIG, stored(q=(6, 4), k=(4, 4), odd=(1,), stray=(2, 2), old=(1,)))
    assert str(caught.value).splitlines()[1:] == [
        "2 tensors missing: norm [4], out [4, 6]",
        "1 tensors of the wrong shape: k [4, 4], not [3, 4]",
        "2 tensors unused: odd, stray",
    ]


def test_parts_of_the_right_total_but_swapped_sizes_are_misshapen():
    with pytest.raises(CheckpointError, match=r"q \[3, 4\], not \[6, 4\], k \[6, 4\], not \[3, 4\]"):
        load([W("{q,k}", "qk", "{H,K}·D E")], [], CONFIG, stored(q=(3, 4), k=(6, 4)))


def test_a_tensor_used_twice_and_a_parameter_filled_twice_are_errors():
    with pytest.raises(CheckpointError, match="1 tensors used twice: a"):
        load([W("a", "x", "E", vector), W("a", "y", "E", vector)], [], CONFIG, stored(a=(4,)))
    with pytest.raises(CheckpointError, match="parameter x is filled twice"):
        load([W("a", "x", "E", vector), W("b", "x", "E", vector)], [], CONFIG, stored(a=(4,), b=(4,)))


def test_shapes_are_read_by_their_letters():
    assert sizes("2H·D E", CONFIG.axes) == (12, 4)
    assert sizes("E 3", CONFIG.axes) == (4, 3)
    assert spread("a.{q,k,v}_proj") == ["a.q_proj", "a.k_proj", "a.v_proj"]
    assert spread("plain") == ["plain"]


@pytest.mark.parametrize("kept", ["float32", "float16", "bfloat16"])
def test_auto_keeps_matrices_as_stored(kept):
    checkpoint = tiny_checkpoint()
    for tensor in checkpoint.tensors.values():
        tensor.stored = as_stored(tensor.stored, kept)
    weights = models.load(checkpoint, Config()).weights
    assert weights.embed.dtype == weights.layers[1].qkv.dtype == kept
    assert rows(weights.embed).tobytes() == exact(checkpoint.tensors["model.embed_tokens.weight"].stored).tobytes()
    assert weights.norm.tobytes() == exact(checkpoint.tensors["model.norm.weight"].stored).tobytes()


def test_dtype_rounds_matrices_once_and_leaves_vectors_exact():
    exactly, rounded = tiny_model().weights, tiny_model(dtype="bfloat16").weights
    assert rounded.embed.dtype == "bfloat16"
    assert rows(rounded.embed).tobytes() == exact(as_stored(rows(exactly.embed), "bfloat16")).tobytes()
    assert rounded.norm.tobytes() == exactly.norm.tobytes()


def test_parts_stored_as_different_types_meet_in_float32():
    checkpoint = stored(q=(6, 4), k=(3, 4))
    checkpoint.tensors["k"].stored = as_stored(checkpoint.tensors["k"].stored / 3, "bfloat16")
    qk = load([W("{q,k}", "qk", "{H,K}·D E")], [], CONFIG, checkpoint).qk
    assert qk.dtype == "float32"
    assert rows(qk)[6:].tobytes() == exact(checkpoint.tensors["k"].stored).tobytes()


def as_stored(array: np.ndarray, dtype: str) -> np.ndarray:
    if dtype != "bfloat16":
        return array.astype(dtype)
    bits = array.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def exact(array: np.ndarray) -> np.ndarray:
    return (array.astype(np.uint32) << 16).view(np.float32) if array.dtype == np.uint16 else array.astype(np.float32)
