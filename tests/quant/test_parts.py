"""Parts of quantised weights, as ranks have them: the same numbers as the parts of the whole."""

from __future__ import annotations

import numpy as np
import pytest

from zerokl.checkpoints.dummy_quantised import weight
from zerokl.errors import UnsupportedModel
from zerokl.models.split import Part, Share, Team

SHAPES = {"NVFP4": (64, 96), "FP8": (64, 96), "FP8_BLOCK": (256, 384)}


@pytest.mark.parametrize("kind", SHAPES)
def test_pieces_of_rows_and_columns_have_the_numbers_of_the_whole(kind):
    whole = weight("w", SHAPES[kind], kind)
    unit = 128 if kind == "FP8_BLOCK" else 16
    numbers = whole.float32()
    assert np.array_equal(whole.cut(1, [(unit, 2 * unit)]).float32(), numbers[:, unit : 2 * unit])
    pieces = [(0, unit // 2), (unit, 2 * unit)] if kind != "FP8_BLOCK" else [(0, unit), (unit, unit + 16)]
    rows = np.concatenate([numbers[start:stop] for start, stop in pieces])
    assert np.array_equal(whole.cut(0, pieces).float32(), rows)


def test_a_scale_per_output_is_cut_with_its_rows():
    whole = weight("w", (64, 96), "FP8")
    each = type(whole)(whole.codes, np.arange(1, 65, dtype=np.float32))
    assert np.array_equal(each.cut(0, [(16, 48)]).float32(), each.float32()[16:48])
    assert np.array_equal(each.cut(1, [(16, 48)]).float32(), each.float32()[:, 16:48])


def test_experts_are_cut_by_width_in_both_matrices():
    whole = weight("w", (3, 64, 32), "NVFP4")
    assert whole.factor.shape == (3,)
    numbers = whole.float32()
    share = Share(Team(2), {"M": Part(16, 32)})
    axes = {"X": 3, "M": 32, "E": 32}
    found = share.own(whole, "X M+M E", axes)
    assert np.array_equal(found.float32(), np.concatenate([numbers[:, 16:32], numbers[:, 48:64]], axis=1))
    assert np.array_equal(found.float32(), share.own(numbers, "X M+M E", axes))
    assert np.array_equal(share.own(whole, "X 2M E", axes).float32(), numbers[:, 32:64])
    assert np.array_equal(share.own(weight("w", (3, 32, 32), "NVFP4"), "X E M", axes).shape, (3, 32, 16))


@pytest.mark.parametrize(("kind", "piece"), [("NVFP4", (8, 16)), ("FP8_BLOCK", (64, 128))])
def test_a_cut_within_a_block_is_refused(kind, piece):
    with pytest.raises(UnsupportedModel, match="would cut blocks of"):
        weight("w", SHAPES[kind], kind).cut(1, [piece])
