"""Linear layers: every way gives the reference schedule's bits, for any rows, and a planted split-K does not."""

from __future__ import annotations

import pytest
import torch

from tests.gpu.device import DEVICE, INTERPRETED, NARROW, normal, relative_error, same
from zerokl import ops
from zerokl.ops.choices import LIBRARY, REFERENCE, TABLE, TILES, Choices, Schedule, Shape, candidates
from zerokl.ops.triton import admit, swiglu
from zerokl.ops.triton.admit import differing, inputs, outcome, split_k
from zerokl.ops.triton.chain import empty, run_chain
from zerokl.ops.triton.ways import forbid_split_k

N, K = (40, 96) if INTERPRETED else (1000, 1600)
"""No multiples of a tile; K is one of 64 and of no larger step."""
SCHEDULES = [
    REFERENCE,
    *{schedule for row in TABLE for schedule in row[1:]},
    *(Schedule(*one) for one in [(8, 16, 256, True, 1, 4), (32, 128, 64, True, 4, 5), (128, 128, 64, False, 8, 3)]),
    *(Schedule(*one) for one in [(64, 256, 64, False, 8, 3), (128, 256, 64, False, 8, 3), (16, 16, 512, True, 2, 4)]),
]


def raw(schedule: Schedule, x, w):
    return run_chain(x, w, empty(x, len(w), torch.float32), schedule)


@pytest.mark.parametrize("kind", admit.KINDS)
def test_every_schedule_gives_the_reference_bits_in_float32(kind):
    rows = 20 if INTERPRETED else 150
    given = inputs(Shape(0, N, K), rows, DEVICE, kind, NARROW)
    expected = raw(REFERENCE, given.x, given.w)
    assert torch.isfinite(expected).all()
    for schedule in SCHEDULES[: 4 if INTERPRETED else None]:
        for count in (1, rows // 2, rows):
            assert same(raw(schedule, given.x[:count], given.w), expected[:count]), f"{schedule} at {count} rows"


def test_a_planted_split_k_differs_in_nine_of_ten_outputs():
    given = inputs(Shape(0, N, K), 20, DEVICE, "cancelling", NARROW)
    expected = raw(REFERENCE, given.x, given.w)
    assert differing(split_k(given, 20), expected) > 0.9 * expected.numel()


def test_the_chain_is_near_float64():
    x, w = normal(1, 33, K), normal(2, N, K)
    assert relative_error(raw(REFERENCE, x, w), x.double() @ w.double().T) < 1e-5


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("added", [False, True])
def test_bias_and_residual_are_added_in_float32_and_the_residual_takes_the_sum(biased, added):
    given = inputs(Shape(0, N, K, False, biased, added), 9, DEVICE, "gaussian", NARROW)
    before = given.residual.clone() if added else None
    found = ops.linear(given.x, ops.DeviceMatrix(given.w), bias=given.bias, residual=given.residual)
    exact = raw(REFERENCE, given.x, given.w)
    exact = exact + given.bias if biased else exact
    assert same(found, exact + before if added else exact.to(NARROW))
    assert not added or found is given.residual


@pytest.mark.parametrize("biased", [False, True])
def test_a_gated_product_is_the_product_and_the_gate(biased):
    given = inputs(Shape(0, N // 2, K, True, biased), 17, DEVICE, "gaussian", NARROW)
    weight = ops.DeviceMatrix(given.w)
    apart = swiglu(ops.linear(given.x, weight, bias=given.bias))
    assert same(ops.gated_linear(given.x, weight, bias=given.bias), apart)


def test_admission_falls_back_when_the_first_choice_differs(monkeypatch):
    """The planted defect: a library that splits K. It must be seen, not used, and the next candidate taken."""
    monkeypatch.setattr("zerokl.ops.triton.ways.library", planted_library)
    choices, kind = Choices(), Shape(0, 64, 128)
    verdicts = admit.admit(choices, [kind], [16, 128], DEVICE, NARROW)
    assert [verdict.differing > 0 for verdict in verdicts] == [False, True, False]
    assert choices.of(kind._replace(rows=128)) == candidates(kind._replace(rows=128))[1]


def planted_library(x, w, y, added=False):
    y.copy_(split_k(admit.Inputs(x, w, None, None), len(x)))
    return y


@pytest.mark.device
def test_cublas_without_split_k_is_admitted_and_with_it_is_rejected():
    """On shapes where its heuristic splits K: the settings are what the bits rest on."""
    shapes = [(rows, 4096, 4096) for rows in (16, 24, 32, 48)] + [(rows, 4096, 12288) for rows in (64, 96, 128, 160)]
    given = {(n, k): inputs(Shape(0, n, k), 160, DEVICE, "cancelling") for _, n, k in shapes}
    expected = {key: raw(REFERENCE, one.x, one.w).bfloat16() for key, one in given.items()}

    def count() -> list[int]:
        return [
            differing(torch.mm(given[n, k].x[:rows], given[n, k].w.t()), expected[n, k][:rows]) for rows, n, k in shapes
        ]

    forbid_split_k()
    assert count() == [0] * len(shapes)
    torch.backends.cuda.preferred_blas_library("cublas")
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True
    try:
        assert max(count()) > 0
    finally:
        forbid_split_k()


@pytest.mark.device
@pytest.mark.parametrize("rows", [1, 130, 1024, 1280])
def test_tiles_that_programs_take_in_turn_give_the_reference_bits(rows):
    shape = Shape(0, 1024, 576, gated=True)
    for kind in admit.KINDS:
        given = inputs(shape, rows, DEVICE, kind)
        for way in (TILES, TILES._replace(band=3), TILES._replace(stages=4)):
            assert differing(outcome(way, shape, given, rows), outcome(REFERENCE, shape, given, rows)) == 0, (kind, way)


@pytest.mark.device
def test_the_table_of_kernels_shows_who_was_chosen_and_who_differs():
    from zerokl.bench.kernels import measured
    from zerokl.cli.bench import text_of

    layers = {"out": Shape(0, 4096, 4096, added=True), "gate_up": Shape(0, 512, 512, gated=True)}
    lines = list(measured(layers, [1, 64]))
    assert [(line.layer, line.shape.rows) for line in lines] == [(name, rows) for name in layers for rows in (1, 64)]
    assert all(line.ratio > 0 for line in lines)
    assert "rejected: cuBLAS's own choice" in text_of(lines[0]), "it splits K at one row of 4096 x 4096"


@pytest.mark.device
@pytest.mark.parametrize("shape", [Shape(0, 4096, 4096, added=True), Shape(0, 1536, 576), Shape(0, 1536, 576, True)])
def test_the_library_gives_the_reference_bits_at_buckets(shape):
    forbid_split_k()
    for kind in admit.KINDS:
        given = inputs(shape, 1024, DEVICE, kind)
        expected = outcome(REFERENCE, shape, given, 1024)
        for rows in (96, 128, 256, 512, 1024):
            assert differing(outcome(LIBRARY, shape, given, rows), expected[:rows]) == 0, (kind, rows)
