"""`linear` is one chain per output, whatever surrounds it."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ops.cpus import cpu, every_cpu
from tests.ops.numbers import cancelling, same, subnormal, wide
from zerokl import _native, ops
from zerokl.errors import ShapeError, UnsupportedDtype
from zerokl.ops import reference

FORMATS = ("float32", "float16", "bfloat16")

# Rows: every group size (1, 2, 4, 8, 12), a sum of them, two tiles. Outputs: part of a panel, several panels and a
# part, more than one tile. Depth: none, one, odd, two K blocks (1536 is one).
SHAPES = [(1, 5, 1), (2, 16, 7), (4, 33, 0), (8, 16, 33), (27, 40, 64), (3, 200, 65), (12, 17, 1541), (100, 48, 20)]


@pytest.mark.parametrize(("rows", "outputs", "depth"), SHAPES)
@pytest.mark.parametrize("dtype", FORMATS)
def test_every_cpu_equals_the_reference(rows, outputs, depth, dtype):
    x, weight, bias, residual = wide(1, rows, depth), wide(2, outputs, depth), wide(3, outputs), wide(4, rows, outputs)
    matrix, exact = ops.pack(weight, dtype), reference.pack(weight, dtype)
    plain = reference.linear(x, exact)
    full = reference.linear(x, exact, bias=bias, residual=residual)
    for name in every_cpu():
        assert same(ops.linear(x, matrix), plain), name
        assert same(ops.linear(x, matrix, bias=bias, residual=residual), full), name


@pytest.mark.parametrize("make", [cancelling, lambda seed, r, n, k: (subnormal(seed, r, k), subnormal(seed + 1, n, k))])
def test_sums_that_cancel_or_underflow_keep_every_bit(make):
    x, weight = make(5, 9, 35, 128)
    expected = reference.linear(x, weight)
    assert (expected != 0).mean() > 0.7, "the input shows something"
    for name in every_cpu():
        assert same(ops.linear(x, ops.pack(weight, "float32")), expected), name


def test_a_sum_cut_in_two_would_be_seen():
    """The guard's own test: the defect that most engines have, a split of K, on the inputs used here."""
    for x, weight in (cancelling(5, 9, 35, 128), (wide(1, 27, 64), wide(2, 40, 64))):
        half = x.shape[1] // 2
        cut = reference.linear(x[:, :half], weight[:, :half]) + reference.linear(x[:, half:], weight[:, half:])
        assert (cut != reference.linear(x, weight)).mean() > 0.4


def test_infinities_and_nans_stay_in_their_row_and_output():
    x, weight = wide(1, 14, 40), wide(2, 50, 40)
    x[3, 7], x[5, 0], weight[20, 39] = np.inf, np.nan, -np.inf
    expected = reference.linear(x, weight)
    assert np.isfinite(expected).mean() > 0.7
    for name in every_cpu():
        assert same(ops.linear(x, ops.pack(weight, "float32")), expected), name


@settings(max_examples=60)
@given(st.data())
def test_any_row_in_any_company_has_the_same_bits(data):
    rows = data.draw(st.integers(1, 130), "rows")
    row = data.draw(st.integers(0, rows - 1), "row")
    isa, threads = data.draw(st.sampled_from(_native.isas())), data.draw(st.integers(1, 4))
    x, matrix = wide(rows, rows, 96), ops.pack(wide(2, 70, 96), "bfloat16")
    alone = ops.linear(x[row : row + 1], matrix)
    with cpu(isa, threads):
        assert same(ops.linear(x, matrix)[row : row + 1], alone)


def test_calls_on_several_threads_do_not_mix():
    x, matrix = wide(1, 30, 200), ops.pack(wide(2, 300, 200), "bfloat16")
    expected = ops.linear(x, matrix)
    equal = [False] * 4

    def work(index: int) -> None:
        equal[index] = all(same(ops.linear(x, matrix), expected) for _ in range(50))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(equal))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(equal)


def test_nothing_of_an_earlier_call_is_left_in_the_scratch():
    """Rows are interleaved in memory that is kept: an unmasked rest of a larger call would show."""
    matrix = ops.pack(wide(2, 20, 64), "float32")
    ops.linear(np.full((50, 64), np.nan, np.float32), matrix)
    x = wide(1, 7, 64)
    assert same(ops.linear(x, matrix), reference.linear(x, wide(2, 20, 64)))


@pytest.mark.parametrize(("rows", "outputs"), [(0, 5), (3, 0), (0, 0)])
def test_empty_batches_and_matrices_give_empty_results(rows, outputs):
    y = ops.linear(wide(1, rows, 8), ops.pack(wide(2, outputs, 8), "float32"))
    assert y.shape == (rows, outputs)


def test_wrong_arrays_are_named():
    matrix = ops.pack(wide(1, 6, 8), "float32")
    x = wide(2, 3, 8)
    with pytest.raises(ShapeError, match=r"x must be \[3, 8\] .* not \[3, 7\]"):
        ops.linear(x[:, :7].copy(), matrix)
    with pytest.raises(ShapeError, match="not contiguous"):
        ops.linear(wide(2, 8, 3).T, matrix)
    with pytest.raises(ShapeError, match="x must be"):
        ops.linear(x[0], matrix)
    with pytest.raises(UnsupportedDtype, match="x must be float32, not float64"):
        ops.linear(x.astype(np.float64), matrix)
    with pytest.raises(ShapeError, match="bias"):
        ops.linear(x, matrix, bias=wide(3, 7))
    with pytest.raises(ShapeError, match="residual"):
        ops.linear(x, matrix, residual=wide(3, 3, 7))
    with pytest.raises(ShapeError, match=r"leaves that end at \[4, 6\] don't cut 8 columns"):
        ops.pack(wide(1, 6, 8), "float32", leaves=(4, 6))


# Leaves: equal, unequal, missing at the end, one longer than a block of K, one alone.
CUTS = [(16, 32), (48, 80, 112, 130), (16, 32, 40), (16, 32, 48, 64, 80), (1600, 1616), (33,)]


@pytest.mark.parametrize("ends", CUTS)
@pytest.mark.parametrize("dtype", FORMATS)
def test_leaves_are_chains_that_a_balanced_tree_adds(ends, dtype):
    x, weight, bias, residual = wide(1, 14, ends[-1]), wide(2, 35, ends[-1]), wide(3, 35), wide(4, 14, 35)
    matrix, exact = ops.pack(weight, dtype, leaves=ends), reference.pack(weight, dtype)
    expected = reference.linear(x, exact, bias=bias, residual=residual, leaves=ends)
    for name in every_cpu():
        for rows in (slice(0, 1), slice(0, 14)):
            found = ops.linear(x[rows], matrix, bias=bias, residual=residual[rows])
            assert same(found, expected[rows]), name


def test_leaves_added_one_after_the_other_or_in_bf16_would_be_seen():
    ends = (16, 32, 48, 64)
    x, weight = wide(1, 27, 64), wide(2, 40, 64)
    expected = reference.linear(x, weight, leaves=ends)
    leaves = [reference.linear(x[:, i - 16 : i], weight[:, i - 16 : i]) for i in ends]
    in_turn = ((leaves[0] + leaves[1]) + leaves[2]) + leaves[3]
    assert (in_turn != expected).mean() > 0.2
    assert (reference.tree([reference.pack(leaf, "bfloat16") for leaf in leaves]) != expected).mean() > 0.9
    assert (reference.linear(x, weight) != expected).mean() > 0.4
