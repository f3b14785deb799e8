"""Segments as arrays."""

from __future__ import annotations

import numpy as np
import pytest

from zerokl.errors import EngineError
from zerokl.runner.batch import ragged_tokens
from zerokl.types import PageId, RequestId, Segment


def segment(start: int, tokens: list[int], pages: list[int], **wishes) -> Segment:
    return Segment(RequestId(7), start, tokens, [PageId(page) for page in pages], **wishes)


def test_a_step_is_laid_out_as_the_drawing_says():
    tokens, ragged = ragged_tokens(
        [segment(5, [10, 11, 12], [9, 2]), segment(12, [13], [4, 7, 1, 8]), segment(0, [14, 15, 16, 17], [3])], 4
    )
    assert tokens.tolist() == [10, 11, 12, 13, 14, 15, 16, 17]
    assert ragged.row_starts.tolist() == [0, 3, 4, 8]
    assert ragged.positions.tolist() == [5, 6, 7, 12, 0, 1, 2, 3]
    assert ragged.slots.tolist() == [2 * 4 + 1, 2 * 4 + 2, 2 * 4 + 3, 8 * 4, 12, 13, 14, 15]
    assert ragged.page_table.tolist() == [[9, 2, 0, 0], [4, 7, 1, 8], [3, 0, 0, 0]]
    assert {array.dtype for array in (tokens, ragged.positions, ragged.slots, ragged.page_table)} == {
        np.dtype(np.int32)
    }


def test_pages_beyond_the_segments_end_are_left_out():
    _, ragged = ragged_tokens([segment(0, [1, 2], [5, 6, 7, 8])], 4)
    assert ragged.page_table.tolist() == [[5]]


def test_pages_that_do_not_cover_the_positions_are_our_fault():
    with pytest.raises(EngineError, match="request 7: 1 pages of 4 slots don't cover 5 positions"):
        ragged_tokens([segment(3, [1, 2], [5])], 4)
