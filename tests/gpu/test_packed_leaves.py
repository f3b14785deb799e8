"""Packed weights in leaves, and one row by a warp for 16 outputs of each leaf, or of gate and of up."""

from __future__ import annotations

import functools

import pytest
import torch

from tests.gpu.device import DEVICE, INTERPRETED, NARROW, relative_error
from tests.gpu.early import waits_for_the_kernel_ahead
from zerokl import ops
from zerokl.ops.choices import (
    BLOCKS,
    PROCESSORS,
    REFERENCE_LEAVES,
    WARP_ROW_TABLE,
    Choices,
    Shape,
    WarpRow,
    leaf_candidates,
    reference_of,
)
from zerokl.ops.matrix import PackedLeaves
from zerokl.ops.shards import cut
from zerokl.ops.triton import ways
from zerokl.ops.triton.admit import KINDS, admit, differing, inputs, outcome, quantised
from zerokl.ops.triton.warp_row import shared_bytes
from zerokl.quant import device_leaves_of, device_matrix_of
from zerokl.suites import register_cuda_ci

from .test_packed import FORMS, some

register_cuda_ci(est_time=30, stage="extra-b", runner_config="1-gpu-small")

DEPTH, COLUMNS = (512, 32) if INTERPRETED else (6144, 512)
ROWS = (1, 5) if INTERPRETED else (1, 8, 64, 300)
WARP_ROWS = [WarpRow(2, 4, 3), WarpRow(1, 4, 2), WarpRow(2, 2, 4), WarpRow(1, 3, 3)]


def kind_of(form: str, leaves: int, biased: bool = False, added: bool = False, wide: bool = False) -> Shape:
    ends = tuple(cut(DEPTH, 128 if form == BLOCKS else 16, leaves)[1:])
    return Shape(0, COLUMNS, DEPTH, False, biased, added, wide, ends, form)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("leaves", [2, 3, 8])
def test_every_way_gives_the_reference_schedules_bits(form, leaves):
    if form == BLOCKS and leaves == 8 and INTERPRETED:
        pytest.skip("blocks of 128 are longer than these leaves")
    for added, biased, wide in ((True, False, False), (False, True, False), (False, False, True)):
        kind = kind_of(form, leaves, biased, added, wide)
        given = inputs(kind, max(ROWS), DEVICE, KINDS[0], NARROW)
        expected = outcome(reference_of(kind), kind, given, max(ROWS))
        for rows in ROWS:
            for way in leaf_candidates(kind._replace(rows=rows)):
                assert differing(outcome(way, kind, given, rows), expected[:rows]) == 0, (way, rows)


@pytest.mark.device
@pytest.mark.parametrize("how", KINDS)
@pytest.mark.parametrize("form", FORMS[:3])
@pytest.mark.parametrize("leaves", [2, 4, 8])
def test_one_row_by_a_warp_for_each_leaf_has_the_reference_bits(form, leaves, how):
    for added, biased, wide in ((True, False, False), (False, True, True)):
        kind = kind_of(form, leaves, biased, added, wide)
        given = inputs(kind, 3, DEVICE, how, NARROW)
        expected = outcome(reference_of(kind), kind, given, 3)
        for way in WARP_ROWS:
            assert differing(outcome(way, kind, given, 1), expected[:1]) == 0, way


@pytest.mark.device
@pytest.mark.parametrize("how", KINDS)
@pytest.mark.parametrize("form", FORMS[:3])
def test_gate_and_up_of_one_row_by_warps_have_the_reference_bits(form, how):
    for biased in (False, True):
        kind = Shape(0, COLUMNS, 1536, True, biased, form=form)
        given = inputs(kind, 3, DEVICE, how, NARROW)
        expected = outcome(reference_of(kind), kind, given, 3)
        for way in (*WARP_ROWS, WarpRow(4, 8, 2)):
            assert differing(outcome(way, kind, given, 1), expected[:1]) == 0, way


def test_no_processor_has_room_for_more_programs_than_its_share():
    """Qwen3-8B's layers: the first programs would go there two at a time, and others idle."""
    layers = ((12288, 8, 4096), (4096, 8, 4096), (4096, 2, 12288))
    for form, ways_of_form in WARP_ROW_TABLE.items():
        for way, (depth, sides, columns) in zip(ways_of_form, layers, strict=True):
            programs = columns // 16 // way.panels
            _, pool = shared_bytes(depth, sides, form == "nvfp4", way, programs)
            share = -(-programs // PROCESSORS)
            assert share * (pool + 1024) <= 228 * 1024 < (share + 1) * (pool + 1024), (form, way)


@pytest.mark.device
@pytest.mark.parametrize("form", ["nvfp4", "fp8"])
def test_it_waits_for_the_kernel_ahead(form):
    ends = tuple(range(256, 1025, 256))
    weights = [quantised(form, 1024, 1024, False, torch.Generator(DEVICE).manual_seed(seed), ends) for seed in range(6)]
    waits_for_the_kernel_ahead([WarpRow(2, 4, 3), WarpRow(1, 2, 4)], 1, weights, ends, REFERENCE_LEAVES)


def test_they_are_near_float64_and_other_bits_than_one_chain():
    parts = [some("nvfp4", COLUMNS, DEPTH, 1)]
    whole = device_matrix_of(parts, DEVICE)
    cut_in_8 = device_leaves_of(parts, cut(DEPTH, 16, 8)[1:], DEVICE)
    x = inputs(Shape(0, COLUMNS, DEPTH), 1, DEVICE, "gaussian", NARROW).x
    exact = x.double() @ torch.from_numpy(parts[0].float32()).to(DEVICE).double().T
    found = ops.linear(x, cut_in_8, wide=True)
    assert relative_error(found, exact) < 1e-6
    assert differing(found, ops.linear(x, whole, wide=True)) > 0


def test_leaves_of_one_size_lie_one_behind_the_other():
    """Which is how the kernel for one row finds them."""
    for form in FORMS[:3]:
        weight = device_leaves_of([some(form, 32, 512)], cut(512, 16, 4)[1:], DEVICE)
        for name in ("words", "scales"):
            whole = getattr(weight, name)
            if whole is not None:
                step = whole[0].numel() * whole.element_size()
                for number, leaf in enumerate(weight.leaves):
                    assert getattr(leaf, name).data_ptr() == whole.data_ptr() + number * step
    assert device_leaves_of([some("fp8", 32, 512)], cut(512, 16, 3)[1:], DEVICE).words is None


@pytest.mark.parametrize("rows", [pytest.param(1, marks=pytest.mark.device), 5])
def test_admission_rejects_planted_defects(monkeypatch, rows):
    """A leaf in another's place, and leaves that are added one after the other."""
    choices, kind = Choices(), kind_of("nvfp4", 8, added=True)
    assert not any(verdict.differing for verdict in admit(choices, [kind], [rows], DEVICE, NARROW))

    def first_for_last(x, w, y, way, bias, added):
        return ways.compute_leaves(REFERENCE_LEAVES, x, PackedLeaves((*w.leaves[:-1], w.leaves[0])), y, (), bias, added)

    def in_turn(parts, y, bias, added):
        return y.add_(functools.reduce(torch.add, parts))

    monkeypatch.setattr(ways, "run_warp_row", first_for_last)
    monkeypatch.setattr(ways, "fold_leaves", in_turn)
    verdicts = admit(choices, [kind], [rows], DEVICE, NARROW)
    assert [verdict.way for verdict in verdicts] == leaf_candidates(kind._replace(rows=rows))
    assert [bool(verdict.differing) for verdict in verdicts] == [True] * (len(verdicts) - 1) + [False]
