"""Up to 64 rows, and gates of many, by copies and the warpgroup's instruction: the reference schedule's bits."""

from __future__ import annotations

import pytest

from tests.gpu.device import DEVICE
from tests.gpu.early import waits_for_the_kernel_ahead
from zerokl.ops.choices import GATED_GROUPS, REFERENCE, Shape, StreamedRows, candidates, leaf_candidates, reference_of
from zerokl.ops.triton import admit
from zerokl.ops.triton.admit import differing, inputs, outcome

pytestmark = pytest.mark.device

WAYS = [StreamedRows(32, 8, 132, True), StreamedRows(48, 6, 7, False), StreamedRows(64, 3, 132, False)]
"""One of them with fewer programs than there are tiles, so that rings go on from tile to tile."""
EIGHT = tuple(range(128, 1025, 128))


@pytest.mark.parametrize("how", admit.KINDS)
@pytest.mark.parametrize(
    "shape",
    [
        Shape(0, 1000, 1024, wide=True),
        Shape(0, 520, 512, gated=True),
        Shape(0, 1000, 1024, added=True),
        Shape(0, 1000, 1024, added=True, ends=EIGHT),
        Shape(0, 1000, 1024, added=True, ends=(512, 1024)),
    ],
)
def test_every_stream_of_rows_gives_the_reference_bits(shape, how):
    """1,000 and 520 outputs are no whole number of tiles, 17 and 40 rows no whole number of copies."""
    given = inputs(shape, 64, DEVICE, how)
    expected = outcome(reference_of(shape), shape, given, 64)
    for way in WAYS:
        for rows in (9, 16, 17, 40, 64):
            assert differing(outcome(way, shape, given, rows), expected[:rows]) == 0, (way, rows)


def test_leaves_are_another_sum_than_one_chain():
    """The planted defect: whoever takes leaves for one chain is seen."""
    shape = Shape(64, 1000, 1024, wide=True)
    given = inputs(shape, 64, DEVICE, "cancelling")
    leaves = outcome(WAYS[0], shape._replace(ends=EIGHT), given, 64)
    assert differing(outcome(WAYS[0], shape, given, 64), leaves) > 0.9 * leaves.numel()


@pytest.mark.parametrize("rows", [1024, 1300])
@pytest.mark.parametrize("band", [3, 16])
def test_groups_that_share_a_load_give_the_reference_bits(rows, band):
    shape = Shape(0, 1024, 576, gated=True)
    for how in admit.KINDS:
        given = inputs(shape, rows, DEVICE, how)
        found = outcome(GATED_GROUPS._replace(band=band), shape, given, rows)
        assert differing(found, outcome(REFERENCE, shape, given, rows)) == 0, how


def test_they_are_the_first_choice_at_their_sizes():
    assert isinstance(candidates(Shape(64, 6144, 4096))[0], StreamedRows)
    assert isinstance(leaf_candidates(Shape(64, 4096, 1024, added=True, ends=EIGHT))[0], StreamedRows)


def test_a_stream_of_rows_that_begins_early_still_sees_what_the_kernel_ahead_writes():
    waits_for_the_kernel_ahead(WAYS, rows=48)
