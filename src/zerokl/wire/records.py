"""What one step did for one request, as the frontend sees it; and a step's records as one message of columns.

Frontends send one frame, chunk or list entry per record and never join two: where records end is a function of the
token index and the stop-string hold-back alone, so it is decided once, in the engine.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TypeVar

import msgspec

from zerokl.types import Logprobs
from zerokl.wire.frames import NO_COLUMN, Columns, Frame, WireError, encode
from zerokl.wire.messages import Done, First, Span, Step

Part = TypeVar("Part", First, Done)
Column = TypeVar("Column", list[int], bytes, "memoryview[int]", "memoryview[float]")


class Record(msgspec.Struct, frozen=True):
    """New tokens of one request with their text and logprobs; what it ended with, if it ended.

    The text is final: joined over a request's records it is the whole answer, cut at the stop string.
    """

    rid: int
    tokens: Sequence[int] = ()
    text: str = ""
    scores: Logprobs | None = None
    """Of prompt tokens, all at once, with the first record."""
    logprobs: Logprobs | None = None
    """One row per new token."""
    first: First | None = None
    """With the first record, always."""
    done: Done | None = None
    """With the last record, always."""


def encode_step(step: int, records: Sequence[Record]) -> bytes:
    """One Step frame."""
    columns = Columns()
    texts = [record.text.encode() for record in records]
    tokens = array("i")
    for record in records:
        tokens.extend(record.tokens)
    message = Step(
        step,
        rids=columns.add(array("Q", [record.rid for record in records]).tobytes()),
        num_tokens=_counts(columns, [len(record.tokens) for record in records]),
        tokens=columns.add(tokens.tobytes()),
        num_text_bytes=_counts(columns, [len(text) for text in texts]),
        text=columns.add(b"".join(texts)),
        **_logprob_columns(columns, records),
        firsts=[msgspec.structs.replace(r.first, row=row) for row, r in enumerate(records) if r.first is not None],
        dones=[msgspec.structs.replace(r.done, row=row) for row, r in enumerate(records) if r.done is not None],
    )
    return encode(message, columns)


def _logprob_columns(columns: Columns, records: Sequence[Record]) -> dict[str, Span]:
    """The eight columns of logprobs, all empty if no record has any."""
    pairs = [(record.scores or NO_ROWS, record.logprobs or NO_ROWS) for record in records]
    if not any(scores.rows or logprobs.rows for scores, logprobs in pairs):
        return dict.fromkeys(LOGPROB_COLUMNS, NO_COLUMN)
    widest = [scores if scores.rows else logprobs for scores, logprobs in pairs]
    blocks = [block for pair in pairs for block in pair]
    return {
        "num_scores": _counts(columns, [scores.rows for scores, _ in pairs]),
        "num_logprobs": _counts(columns, [logprobs.rows for _, logprobs in pairs]),
        "num_top": _counts(columns, [one.num_top for one in widest]),
        "num_ids": _counts(columns, [one.num_ids for one in widest]),
        "chosen": columns.add(b"".join([block.chosen for block in blocks])),
        "top_ids": columns.add(b"".join([block.top_ids for block in blocks])),
        "top": columns.add(b"".join([block.top for block in blocks])),
        "ids": columns.add(b"".join([block.ids for block in blocks])),
    }


def _counts(columns: Columns, counts: Sequence[int]) -> Span:
    return columns.add(array("I", counts).tobytes())


LOGPROB_COLUMNS = ("num_scores", "num_logprobs", "num_top", "num_ids", "chosen", "top_ids", "top", "ids")
NO_ROWS = Logprobs()


def decode_step(frame: Frame[Step]) -> list[Record]:
    """The records of a Step frame. Raises WireError where its columns contradict each other."""
    step = frame.message
    rids = frame.ints(step.rids, "Q").tolist()
    rows = len(rids)
    tokens = _cut(frame.ints(step.tokens, "i").tolist(), _read_counts(frame, step.num_tokens, rows), "tokens")
    texts = _cut(bytes(frame.ints(step.text, "B")), _read_counts(frame, step.num_text_bytes, rows), "text")
    firsts = _by_row(step.firsts, rows)
    dones = _by_row(step.dones, rows)
    return [
        Record(rid, ids, _utf8(text), *pair, firsts.get(row), dones.get(row))
        for row, (rid, ids, text, pair) in enumerate(zip(rids, tokens, texts, _logprob_pairs(frame, rows), strict=True))
    ]


def _logprob_pairs(frame: Frame[Step], rows: int) -> Iterator[tuple[Logprobs | None, Logprobs | None]]:
    """Per record: (scores, logprobs)."""
    step = frame.message
    if step.num_scores.size == 0:
        yield from [(None, None)] * rows
        return
    counts = [_read_counts(frame, span, rows) for span in (step.num_scores, step.num_logprobs)]
    tops, ids = _read_counts(frame, step.num_top, rows), _read_counts(frame, step.num_ids, rows)
    blocks = [count for pair in zip(*counts, strict=True) for count in pair]
    top_blocks = [count * tops[index // 2] for index, count in enumerate(blocks)]
    id_blocks = [count * ids[index // 2] for index, count in enumerate(blocks)]
    cuts = zip(
        _cut(frame.floats(step.chosen), blocks, "chosen"),
        _cut(frame.ints(step.top_ids, "i"), top_blocks, "top_ids"),
        _cut(frame.floats(step.top), top_blocks, "top"),
        _cut(frame.floats(step.ids), id_blocks, "ids"),
        strict=True,
    )
    blocks_read = [
        Logprobs(blocks[index], tops[index // 2], ids[index // 2], *(bytes(part) for part in parts))
        if blocks[index]
        else None
        for index, parts in enumerate(cuts)
    ]
    yield from zip(blocks_read[::2], blocks_read[1::2], strict=True)


def _read_counts(frame: Frame[Step], span: Span, rows: int) -> list[int]:
    counts = frame.ints(span, "I").tolist()
    if len(counts) != rows:
        raise WireError(f"a column of {len(counts)} counts for {rows} records")
    return counts


def _cut(column: Column, counts: Sequence[int], name: str) -> list[Column]:
    if sum(counts) != len(column):
        raise WireError(f"column {name} has {len(column)} items, its counts add up to {sum(counts)}")
    ends = list(accumulate(counts))
    return [column[end - count : end] for end, count in zip(ends, counts, strict=True)]


def _by_row(parts: Sequence[Part], rows: int) -> dict[int, Part]:
    if any(part.row >= rows for part in parts):
        raise WireError(f"a row that is not among the step's {rows}")
    return {part.row: part for part in parts}


def _utf8(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise WireError(f"text that is no UTF-8: {error}") from error
