"""Few rows whose weights come by bulk copies: the reference schedule's bits, also where a kernel ahead still runs."""

from __future__ import annotations

import pytest
import torch

from tests.gpu.device import DEVICE, same
from tests.gpu.early import waits_for_the_kernel_ahead
from zerokl.ops.choices import REFERENCE, STREAMED, Choices, Shape, Streamed
from zerokl.ops.triton import admit
from zerokl.ops.triton.admit import differing, inputs, outcome
from zerokl.ops.triton.chain import empty
from zerokl.ops.triton.ways import compute

pytestmark = pytest.mark.device

FEW_PROGRAMS = Streamed(32, 128, 3, 7, True)
"""Fewer than there are tiles, so that rings go on from tile to tile."""
WAYS = [*STREAMED[:3], FEW_PROGRAMS, Streamed(16, 512, 4, 1000, False)]
GATED_WAYS = [STREAMED[3], FEW_PROGRAMS, Streamed(16, 512, 4, 1000, False)]


@pytest.mark.parametrize("kind", admit.KINDS)
@pytest.mark.parametrize(
    "shape", [Shape(0, 1000, 1024), Shape(0, 1000, 1024, added=True), Shape(0, 520, 512, gated=True)]
)
def test_every_stream_gives_the_reference_bits(shape, kind):
    """1,000 and 520 outputs are no whole number of tiles."""
    shape = shape._replace(wide=not shape.added and not shape.gated)
    given = inputs(shape, 16, DEVICE, kind)
    expected = outcome(REFERENCE, shape, given, 16)
    for way in GATED_WAYS if shape.gated else WAYS:
        for rows in (1, 3, 8, 16):
            fewer = way if rows <= 8 else way._replace(stages=3)
            assert differing(outcome(fewer, shape, given, rows), expected[:rows]) == 0, (way, rows)


def test_a_wish_that_no_processor_has_the_memory_for_is_not_used(monkeypatch):
    """The planted defect: a winner of another GPU, with rings of 400 kB."""
    greedy = Streamed(64, 512, 6, 132, True)
    monkeypatch.setattr("zerokl.ops.choices.tuned", lambda shape: [greedy])
    choices, kind = Choices(), Shape(0, 512, 1024)
    verdicts = admit.admit(choices, [kind], [8], DEVICE)
    assert [verdict.way for verdict in verdicts] == [greedy, choices.of(kind._replace(rows=8))]
    assert [verdict.differing > 0 for verdict in verdicts] == [True, False]


def test_rows_beyond_the_last_one_are_not_read():
    """They are NaN where another's memory would be."""
    shape = Shape(0, 512, 512)
    given = inputs(shape, 16, DEVICE, "gaussian")
    padded = torch.full((16, 512), float("nan"), device=DEVICE, dtype=torch.bfloat16)
    padded[:3] = given.x[:3]
    found = compute(STREAMED[0], padded[:3], given.w, empty(padded[:3], 512))
    assert same(found, outcome(REFERENCE, shape, given, 3))


def test_a_stream_that_begins_early_still_sees_what_the_kernel_ahead_writes():
    waits_for_the_kernel_ahead(WAYS, rows=4)
