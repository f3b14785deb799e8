"""A packed weight stands for exactly the numbers it was made of, rounded once at most."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.numbers import same, subnormal, wide
from zerokl import ops
from zerokl.errors import EngineError, ShapeError, UnsupportedDtype
from zerokl.ops import reference

EDGES = np.array(
    [0, -0.0, np.inf, -np.inf, np.nan, 65504, 65519.99, 65520, -7e4, 3.4e38, 6e-8, 2.9e-8, 1e-40, 1 + 2**-8, 2 - 2**-9],
    np.float32,
)


def weights():
    yield np.concatenate([wide(1, 30, 9).reshape(-1), EDGES, subnormal(2, 30), -EDGES]).reshape(-1, 5)
    with np.errstate(over="ignore"):
        yield wide(3, 17, 4).astype(np.float16)
    yield np.arange(0, 2**16, 7, dtype=np.uint16)[:9360].reshape(-1, 6)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("index", range(3))
def test_all_rows_read_back_as_the_reference_rounds_them(index, dtype):
    weight = list(weights())[index]
    matrix = ops.pack(weight, dtype)
    assert (matrix.shape, matrix.dtype) == (weight.shape, dtype)
    ids = np.arange(len(weight), dtype=np.int32)
    assert same(ops.embedding(matrix, ids), reference.embedding(reference.pack(weight, dtype), ids))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("index", range(3))
@pytest.mark.parametrize("columns", [5, 6, 1])
def test_parts_are_packed_as_if_they_lay_under_each_other(index, dtype, columns):
    whole = np.resize(list(weights())[index], (41, columns))
    ends = [(0, 3), (3, 3), (3, 20), (20, 41)]  # none begins where a panel of 16 does
    apart, together = ops.pack([whole[start:end] for start, end in ends], dtype), ops.pack(whole, dtype)
    assert (apart.shape, apart.nbytes) == (together.shape, together.nbytes)
    assert same(apart.float32(), together.float32())
    x = wide(7, 3, columns)
    assert same(ops.linear(x, apart), ops.linear(x, together))


def test_a_wider_format_changes_nothing_and_memory_is_what_the_format_needs():
    bits = np.arange(32 * 10, dtype=np.uint16).reshape(32, 10) + 0x3F00
    narrow, exact = ops.pack(bits, "bfloat16"), ops.pack(bits, "float32")
    ids = np.array([31, 0, 7, 7], np.int32)
    assert same(ops.embedding(narrow, ids), ops.embedding(exact, ids))
    assert (narrow.nbytes, exact.nbytes) == (32 * 10 * 2, 32 * 10 * 4)


def test_embedding_takes_ids_in_any_order_and_number():
    weight = wide(1, 40, 6)
    matrix = ops.pack(weight, "float32")
    for ids in ([], [39], [3, 3, 0, 39, 17]):
        assert same(ops.embedding(matrix, np.array(ids, np.int32)), weight[np.array(ids, np.int32)])


@pytest.mark.parametrize("wrong", [-1, 40, 2**31 - 1])
def test_an_id_outside_the_matrix_is_our_error(wrong):
    with pytest.raises(EngineError, match=f"{wrong}"):
        ops.embedding(ops.pack(wide(1, 40, 6), "float32"), np.array([0, wrong], np.int32))


def test_wrong_weights_are_named():
    with pytest.raises(ShapeError, match=r"\[N, K\]"):
        ops.pack(wide(1, 8), "float32")
    with pytest.raises(ShapeError, match=r"\[8, 2\] under \[8, 3\]"):
        ops.pack([wide(1, 8, 2), wide(1, 8, 3)], "float32")
    with pytest.raises(UnsupportedDtype, match="float16 and float32"):
        ops.pack([wide(1, 8, 2), np.zeros((8, 2), np.float16)], "float32")
    with pytest.raises(UnsupportedDtype, match="float64"):
        ops.pack(wide(1, 8, 8).astype(np.float64), "float32")
    with pytest.raises(UnsupportedDtype, match="int4"):
        ops.pack(wide(1, 8, 8), "int4")
    with pytest.raises(UnsupportedDtype, match="ids must be int32"):
        ops.embedding(ops.pack(wide(1, 8, 8), "float32"), np.array([1]))


def test_a_weight_that_is_a_view_packs_as_what_it_shows():
    weight = wide(1, 12, 20)
    assert same(ops.embedding(ops.pack(weight.T, "float32"), np.arange(20, dtype=np.int32)), weight.T.copy())
