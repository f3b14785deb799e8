"""A step's records as columns and back: equal, or a WireError where the columns contradict each other."""

from __future__ import annotations

from array import array

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerokl.types import Logprobs
from zerokl.wire.frames import Columns, Frame, WireError, encode, frontend_side_reader
from zerokl.wire.messages import Done, First, Span, Step
from zerokl.wire.records import Record, decode_step, encode_step


def decoded(raw: bytes) -> list[Record]:
    (frame,) = frontend_side_reader().feed(raw)
    return decode_step(frame)


@st.composite
def records(draw):
    """Columns are any bytes: every bit pattern of a float, NaN with its payload too, must come back."""
    num_top, num_ids = draw(st.integers(0, 3)), draw(st.integers(0, 2))

    def rows(count: int) -> Logprobs | None:
        widths = (count, count * num_top, count * num_top, count * num_ids)
        columns = [draw(st.binary(min_size=4 * width, max_size=4 * width)) for width in widths]
        return Logprobs(count, num_top, num_ids, *columns) if count else None

    return Record(
        draw(st.integers(0, 2**64 - 1)),
        draw(st.lists(st.integers(0, 2**31 - 1), max_size=3)),
        draw(st.text(max_size=3)),
        rows(draw(st.integers(0, 2))),
        rows(draw(st.integers(0, 2))),
        draw(st.sampled_from([None, First(0, -(2**63), 3, 1, 1), First(0, 2**63 - 1, 9, 0)])),
        draw(st.sampled_from([None, Done(0, "length", 4), Done(0, "stop", 1, None, "é")])),
    )


def with_row(record: Record, row: int) -> Record:
    first = record.first and msgspec.structs.replace(record.first, row=row)
    done = record.done and msgspec.structs.replace(record.done, row=row)
    return Record(record.rid, record.tokens, record.text, record.scores, record.logprobs, first, done)


@given(st.lists(records(), max_size=4))
def test_records_come_back_bit_for_bit(sent):
    assert decoded(encode_step(3, sent)) == [with_row(record, row) for row, record in enumerate(sent)]


def step_frame(**changes: Span | list) -> Frame[Step]:
    """A frame of two records, some of its spans replaced."""
    columns = Columns()
    spans = {
        "rids": columns.add(array("Q", [1, 2]).tobytes()),
        "num_tokens": columns.add(array("I", [1, 2]).tobytes()),
        "tokens": columns.add(array("i", [7, 8, 9]).tobytes()),
        "num_text_bytes": columns.add(array("I", [1, 1]).tobytes()),
        "text": columns.add(b"ab"),
    }
    empty = dict.fromkeys(
        ("num_scores", "num_logprobs", "num_top", "num_ids", "chosen", "top_ids", "top", "ids"), Span()
    )
    (frame,) = frontend_side_reader().feed(encode(Step(1, **{**spans, **empty, **changes}), columns))
    return frame


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"num_tokens": Span(16, 4)}, "1 counts for 2 records"),
        ({"tokens": Span(24, 8)}, "column tokens has 2 items, its counts add up to 3"),
        ({"text": Span(44, 1)}, "column text has 1 items"),
        ({"text": Span(15, 2), "num_text_bytes": Span(16, 8)}, "column text"),
        ({"firsts": [First(2, 0, 0, 0)]}, "not among the step's 2"),
        ({"dones": [Done(5, "stop")]}, "not among the step's 2"),
        ({"num_scores": Span(16, 8)}, "0 counts for 2 records"),
    ],
)
def test_columns_that_contradict_each_other_are_refused(changes, why):
    assert [record.text for record in decode_step(step_frame())] == ["a", "b"]
    with pytest.raises(WireError, match=why):
        decode_step(step_frame(**changes))


def test_a_character_cut_between_two_records_is_refused():
    raw = encode_step(1, [Record(1, [], "é")]).replace("é".encode(), b"\xff\xa9")
    with pytest.raises(WireError, match="UTF-8"):
        decoded(raw)
