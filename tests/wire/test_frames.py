"""Frames: cut anywhere they read the same, and whatever else comes is a WireError, never anything worse."""

from __future__ import annotations

import contextlib
import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire.examples import EXAMPLES, submit
from zerokl.wire.frames import PREFIX, Columns, FrameReader, WireError, encode, engine_side_reader, frontend_side_reader
from zerokl.wire.messages import TO_ENGINE, TO_FRONTEND, Abort, Control, Span, Step, Submit
from zerokl.wire.records import decode_step

ALL = b"".join(make() for make in EXAMPLES.values())
KINDS = {**TO_ENGINE, **TO_FRONTEND}


def frame_of(kind: int, header: bytes, columns: bytes = b"") -> bytes:
    return PREFIX.pack(5 + len(header) + len(columns), kind, len(header)) + header + columns


@given(st.lists(st.integers(0, len(ALL)), max_size=20))
def test_frames_read_the_same_however_the_stream_is_cut(cuts):
    reader = FrameReader(KINDS, 2**20)
    whole = [(frame.message, bytes(frame.columns)) for frame in FrameReader(KINDS, 2**20).feed(ALL)]
    edges = [0, *sorted(cuts), len(ALL)]
    pieces = [ALL[start:end] for start, end in itertools.pairwise(edges)]
    assert [(frame.message, bytes(frame.columns)) for piece in pieces for frame in reader.feed(piece)] == whole
    assert len(whole) == len(EXAMPLES)


def read_all(raw: bytes) -> None:
    for frame in FrameReader(KINDS, 2**20).feed(raw):
        if isinstance(frame.message, Step):
            decode_step(frame)
        elif isinstance(frame.message, Submit):
            frame.ints(frame.message.prompt, "i").tolist()


@given(st.binary(max_size=200), st.sampled_from(sorted(KINDS)))
def test_random_bytes_are_a_message_or_a_wire_error(body, kind):
    header = min(len(body), 100)
    for raw in (body, PREFIX.pack(5 + len(body), kind, header) + body):
        with contextlib.suppress(WireError):
            read_all(raw)


@given(st.sampled_from(sorted(EXAMPLES)), st.data())
def test_a_damaged_frame_is_a_message_or_a_wire_error(name, data):
    raw = bytearray(EXAMPLES[name]())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(9, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(WireError):
        read_all(bytes(raw))


def test_a_longer_array_of_a_newer_peer_is_read():
    header = msgspec.msgpack.encode([7, "why", {"new": [1, 2]}, None])
    (frame,) = engine_side_reader().feed(frame_of(2, header))
    assert frame.message == Abort(7, "why")


def test_a_shorter_array_of_an_older_peer_gets_defaults():
    (frame,) = engine_side_reader().feed(frame_of(3, msgspec.msgpack.encode([1, "server_info"])))
    assert frame.message == Control(1, "server_info", "{}")


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (PREFIX.pack(2**31, 1, 10), "the limit is"),
        (PREFIX.pack(100, 99, 10), "unknown kind 99"),
        (PREFIX.pack(20, 18, 10), "unknown kind 18"),
        (PREFIX.pack(20, 2, 16), "a header of 16 bytes in a frame of 20"),
        (frame_of(2, b"\x92\x01"), "truncated"),
        (frame_of(2, b"\x92\x01\xa1x\x00"), "trailing"),
        (frame_of(2, b"\x92\xff\xa1x"), ">= 0"),
        (frame_of(2, b"\x92\x01\xa1\xff"), "UTF-8"),
        (frame_of(2, b"\x93\x01\xa1x" + b"\x91" * 100_000 + b"\xc0"), "recursion"),
        (frame_of(2, b"\xdd\xff\xff\xff\xff\x01"), "truncated"),
    ],
)
def test_what_is_no_message_is_refused_by_name(raw, why):
    with pytest.raises(WireError, match=why):
        list(engine_side_reader().feed(raw))


def test_a_frame_over_the_limit_is_refused_before_it_is_received():
    reader = FrameReader(TO_ENGINE, 1000)
    with pytest.raises(WireError, match="the limit is 1000"):
        list(reader.feed(PREFIX.pack(1001, 1, 10)))


def test_a_message_over_the_limit_is_not_sent(monkeypatch):
    monkeypatch.setattr("zerokl.wire.messages.MAX_TO_ENGINE_BYTES", 100)
    with pytest.raises(WireError, match=r"Submit of \d+ bytes: the limit is 100"):
        submit(*range(40))


@pytest.mark.parametrize("span", [Span(0, 8), Span(8, 0), Span(4, 4), Span(2**32 - 1, 4)])
def test_a_column_outside_its_frame_is_refused(span):
    columns = Columns()
    columns.add(b"\0\0\0\0")
    (frame,) = engine_side_reader().feed(encode(Abort(1), columns))
    if span.size == 0:
        assert frame.ints(span, "i").tolist() == []
        return
    with pytest.raises(WireError, match="are there"):
        frame.ints(span, "i")


def test_a_column_of_half_an_item_is_refused():
    columns = Columns()
    span = columns.add(b"\0\0\0\0\0\0")
    (frame,) = engine_side_reader().feed(encode(Abort(1), columns))
    with pytest.raises(WireError, match="does not divide"):
        frame.ints(span, "i")


def test_each_side_reads_only_what_the_other_sends():
    with pytest.raises(WireError, match="unknown kind 2"):
        list(frontend_side_reader().feed(encode(Abort(1))))
