"""Sums in leaves: each way gives the reference schedule's bits, and ranks that share the leaves give those of one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.gpu.device import DEVICE, INTERPRETED, NARROW, relative_error, same
from zerokl.errors import UnsupportedDtype
from zerokl.ops.choices import (
    REFERENCE,
    REFERENCE_LEAVES,
    Choices,
    LeafTiles,
    Schedule,
    Shape,
    StreamedRows,
    leaf_candidates,
)
from zerokl.ops.matrix import pack
from zerokl.ops.shards import cut
from zerokl.ops.triton.admit import KINDS, admit, differing, inputs, outcome
from zerokl.ops.triton.leaves import reference, run_parts
from zerokl.suites import register_cuda_ci

register_cuda_ci(est_time=60, stage="extra-b", runner_config="1-gpu-small")

DEPTH, COLUMNS = (160, 48) if INTERPRETED else (3072, 512)
ROWS = (1, 5, 20) if INTERPRETED else (1, 8, 64, 300, 1024)


def ends_of(depth: int, leaves: int) -> tuple[int, ...]:
    return tuple(cut(depth, 16, leaves)[1:])


def shape_of(rows: int, leaves: int, biased: bool = False, added: bool = False, wide: bool = False) -> Shape:
    return Shape(rows, COLUMNS, DEPTH, False, biased, added, wide, ends_of(DEPTH, leaves))


@pytest.mark.parametrize("how", KINDS)
@pytest.mark.parametrize("leaves", [2, 3, 4, 8])
def test_every_way_gives_the_reference_schedules_bits(leaves, how):
    for number in range(4):
        added, biased, wide = number == 1, number == 2, number == 3
        kind = shape_of(0, leaves, biased, added, wide)
        given = inputs(kind, max(ROWS), DEVICE, how, NARROW)
        expected = outcome(REFERENCE_LEAVES, kind, given, max(ROWS))
        for rows in ROWS:
            for way in leaf_candidates(kind._replace(rows=rows)):
                assert differing(outcome(way, kind, given, rows), expected[:rows]) == 0, (way, rows)


def test_they_are_near_float64_and_other_bits_than_one_chain():
    kind = shape_of(20, 8, wide=True)
    given = inputs(kind, 20, DEVICE, "gaussian", NARROW)
    found = outcome(REFERENCE_LEAVES, kind, given, 20)
    assert relative_error(found, given.x.double() @ given.w.double().T) < 1e-5
    assert differing(found, outcome(REFERENCE, kind._replace(ends=()), given, 20)) > 0


@pytest.mark.parametrize("leaves", [2, 4, 8])
def test_ranks_that_share_the_leaves_add_to_the_same_bits(leaves):
    """By hand: each of two ranks sums its half of the leaves, then the tree's last addition."""
    kind = shape_of(20, leaves, wide=True)
    given = inputs(kind, 20, DEVICE, "cancelling", NARROW)
    whole = outcome(REFERENCE_LEAVES, kind, given, 20)
    middle, half = kind.ends[leaves // 2 - 1], leaves // 2
    parts = []
    for start, stop, ends in ((0, middle, kind.ends[:half]), (middle, DEPTH, kind.ends[half:])):
        x, w = given.x[:20, start:stop].contiguous(), given.w[:, start:stop].contiguous()
        own = tuple(end - start for end in ends)
        y = torch.empty((20, COLUMNS), device=DEVICE)
        parts.append(reference(x, w, y, own, REFERENCE, None, False).clone())
    assert same(parts[0] + parts[1], whole)


def test_admission_takes_a_way_for_every_bucket_and_rejects_a_planted_defect(monkeypatch):
    choices, kind = Choices(), shape_of(0, 8, added=True)
    assert not any(verdict.differing for verdict in admit(choices, [kind], ROWS, DEVICE, NARROW))
    assert set(choices.admitted) == {kind._replace(rows=rows) for rows in ROWS}

    def as_one_leaf(x, w, y, ends, schedule, bias=None, added=False):
        return run_parts(x, w, y, (ends[3], ends[-1]), schedule, bias, added)

    monkeypatch.setattr("zerokl.ops.triton.ways.run_parts", as_one_leaf)
    for name in ("run_groups", "run_tiles", "run_library", "run_streamed_rows"):
        monkeypatch.setattr(f"zerokl.ops.triton.ways.{name}", lambda x, w, y, *_: y)
    verdicts = admit(choices, [kind], ROWS, DEVICE, NARROW)
    assert all(verdict.differing for verdict in verdicts if verdict.way != REFERENCE_LEAVES)
    assert set(choices.admitted.values()) == {REFERENCE_LEAVES}
    assert isinstance(verdicts[0].way, Schedule | LeafTiles | StreamedRows)


def test_more_leaves_than_the_kernels_write_out_are_refused():
    weight = np.zeros((16, 160), np.float32)
    with pytest.raises(UnsupportedDtype, match="a GPU sums 8 leaves at most, not 10"):
        pack(weight, "bfloat16", "cuda", tuple(range(16, 161, 16)))
