"""Products that normalise their one row of x themselves: the bits of the norm's kernel and the reference schedule."""

from __future__ import annotations

import pytest
import torch

from tests.gpu.device import DEVICE, normal, same
from zerokl import ops
from zerokl.ops.choices import NORMED, NORMED_DEPTHS, NORMED_GATED, Choices, Shape, Streamed, candidates, reference_of
from zerokl.ops.triton import admit, ways
from zerokl.ops.triton.admit import differing, inputs, outcome

pytestmark = pytest.mark.device

FEW_PROGRAMS = Streamed(64, 128, 3, 7, True)
"""Fewer than there are tiles, so that rings go on from tile to tile."""
WAYS = [NORMED, NORMED._replace(columns=32), FEW_PROGRAMS]
GATED_WAYS = [NORMED_GATED, FEW_PROGRAMS]


def kind_of(gated: bool, depth: int = 4096, columns: int = 1000) -> Shape:
    """1,000 outputs are no whole number of tiles."""
    return Shape(0, columns, depth, gated, normed=True)


@pytest.mark.parametrize("depth", NORMED_DEPTHS)
@pytest.mark.parametrize("gated", [False, True])
def test_a_product_that_normalises_has_the_bits_of_norm_and_reference(gated, depth):
    kind = kind_of(gated, depth)
    for how in admit.KINDS:
        given = inputs(kind, 1, DEVICE, how)
        expected = outcome(reference_of(kind), kind, given, 1)
        for way in GATED_WAYS if gated else WAYS:
            assert differing(outcome(way, kind, given, 1), expected) == 0, (how, way)


def test_the_planted_norm_whose_last_bit_differs_is_not_admitted(monkeypatch):
    """A sum in another order gives another factor for some rows of eight; here each row's has the next number."""
    run = ways.run_streamed

    def planted(x, w, y, way, added, gated, norm=None):
        if norm is not None:
            norm = norm[0] * (1 + 2.0**-23), norm[1]
        return run(x, w, y, way, added, gated, norm)

    monkeypatch.setattr(ways, "run_streamed", planted)
    choices, kind = Choices(), kind_of(False)
    verdicts = admit.admit(choices, [kind], [1], DEVICE)
    rejected = [verdict for verdict in verdicts if verdict.differing]
    assert rejected
    assert all(verdict.shape.normed for verdict in rejected)
    assert rejected[0].way == candidates(kind._replace(rows=1))[0]
    assert rejected[0].differing > 0.1 * rejected[0].of


def test_a_product_sees_the_row_that_the_kernel_ahead_just_wrote(monkeypatch):
    """A residual added to by one product and normalised by the next, in a graph, over and over."""
    monkeypatch.setattr(ways, "CHOICES", Choices())
    kinds = [kind_of(True, columns=4096), Shape(0, 4096, 4096, added=True)]
    up, back = (ops.DeviceMatrix(inputs(kind, 1, DEVICE, "gaussian", seed=i).w) for i, kind in enumerate(kinds))
    gain, start = normal(3, 4096, dtype=torch.float32), normal(4, 1, 4096, dtype=torch.float32)

    def run():
        row = start.clone()
        for _ in range(6):
            hidden = ops.gated_linear(row, up, norm=(gain, 1e-6))
            row = ops.linear(hidden, back, residual=row)
        return row

    expected = run()
    assert ways.CHOICES.seen >= {kind._replace(rows=1) for kind in kinds}
    admit.admit(ways.CHOICES, kinds, [1], DEVICE)
    assert ways.CHOICES.of(kinds[0]._replace(rows=1)) == candidates(kinds[0]._replace(rows=1))[0] == NORMED_GATED
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = run()
    for _ in range(20):
        found.fill_(float("nan"))
        graph.replay()
        assert same(found, expected)
