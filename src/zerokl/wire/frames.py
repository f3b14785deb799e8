"""Frames: u32 rest | u8 kind | u32 header | msgpack array | raw little-endian columns.

    ┌──────┬──────┬────────┬───────────────┬──────────────────────────┐
    │ rest │ kind │ header │ msgpack array │ columns, named by `Span` │     rest counts all after itself
    └──────┴──────┴────────┴───────────────┴──────────────────────────┘
       4      1       4      header bytes    rest - 5 - header bytes

Whatever a peer sends, reading it gives a message or a `WireError`; after one, the stream is out of step and is closed.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Generic, Literal, TypeVar

import msgspec
from msgspec import Struct

from zerokl.errors import EngineError
from zerokl.wire import messages
from zerokl.wire.messages import Span, ToEngine, ToFrontend

Message = TypeVar("Message", bound=msgspec.Struct)

PREFIX = struct.Struct("<IBI")
PREFIX_REST = 5
"""Bytes of the prefix that `rest` counts: kind and header."""

if sys.byteorder != "little":
    raise ImportError("zerokl's columns are little-endian and read in place: this machine is big-endian")


class WireError(EngineError):
    """Bytes that are no message of this protocol."""


class Frame(Struct, Generic[Message], frozen=True):
    """A message with the columns that its spans name."""

    message: Message
    columns: memoryview[int]

    def ints(self, span: Span, code: Literal["i", "I", "Q", "B"]) -> memoryview[int]:
        """The span as i32, u32, u64 or bytes."""
        try:
            return self._part(span).cast(code)
        except TypeError as error:
            raise WireError(f"a column of {span.size} bytes does not divide into items of {code!r}") from error

    def floats(self, span: Span) -> memoryview[float]:
        """The span as f32."""
        return self.ints(span, "I").cast("B").cast("f")

    def _part(self, span: Span) -> memoryview[int]:
        part = self.columns[span.offset : span.offset + span.size]
        if len(part) != span.size:
            raise WireError(f"a column of {span.size} bytes at {span.offset}, but {len(self.columns)} bytes are there")
        return part


class Columns:
    """Collects the raw columns of one message."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.size = 0

    def add(self, raw: bytes) -> Span:
        """Append a column; an empty one takes no room."""
        if not raw:
            return NO_COLUMN
        span = Span(self.size, len(raw))
        self.parts.append(raw)
        self.size += len(raw)
        return span


NO_COLUMN = Span()
_encoder = msgspec.msgpack.Encoder()


def encode(message: ToEngine | ToFrontend, columns: Columns | None = None) -> bytes:
    """One frame, ready to be written. Raises WireError where it is longer than the peer would take."""
    kind = messages.KINDS[type(message)]
    header = _encoder.encode(message)
    rest = PREFIX_REST + len(header) + (columns.size if columns else 0)
    limit = messages.MAX_TO_ENGINE_BYTES if kind in messages.TO_ENGINE else messages.MAX_TO_FRONTEND_BYTES
    if rest > limit:
        raise WireError(f"{type(message).__name__} of {rest} bytes: the limit is {limit}")
    return b"".join((PREFIX.pack(rest, kind, len(header)), header, *(columns.parts if columns else ())))


class FrameReader(Generic[Message]):
    """Cuts a byte stream into frames of the given kinds."""

    def __init__(self, kinds: Mapping[int, type[Message]], limit_bytes: int) -> None:
        self._decoders = {kind: msgspec.msgpack.Decoder(message) for kind, message in kinds.items()}
        self._limit_bytes = limit_bytes
        self._pending = bytearray()

    def feed(self, received: bytes) -> Iterator[Frame[Message]]:
        """The frames that are complete with these bytes, in order. Raises WireError at the first bad one."""
        self._pending += received
        start = 0
        try:
            while (end := self._end_of_frame(start)) is not None:
                raw = bytes(memoryview(self._pending)[start:end])
                start = end
                yield self._frame(raw)
        finally:
            del self._pending[:start]

    def _end_of_frame(self, start: int) -> int | None:
        """Where the frame at `start` ends, or None if it is not all there. Refuses a frame before it is read."""
        available = len(self._pending) - start
        if available < PREFIX.size:
            return None
        rest, kind, header = PREFIX.unpack_from(self._pending, start)
        if rest > self._limit_bytes:
            raise WireError(f"a frame of {rest} bytes: the limit is {self._limit_bytes}")
        if kind not in self._decoders:
            raise WireError(f"a frame of unknown kind {kind}")
        if header > rest - PREFIX_REST:
            raise WireError(f"a header of {header} bytes in a frame of {rest}")
        return start + rest + 4 if available >= rest + 4 else None

    def _frame(self, raw: bytes) -> Frame[Message]:
        _, kind, header = PREFIX.unpack_from(raw)
        view = memoryview(raw)
        end = PREFIX.size + header
        try:
            message: Any = self._decoders[kind].decode(view[PREFIX.size : end])
        except (msgspec.DecodeError, RecursionError) as error:
            raise WireError(f"a frame of kind {kind} whose header can't be read: {error}") from error
        return Frame(message, view[end:])


def engine_side_reader() -> FrameReader[ToEngine]:
    """Reads what frontends send."""
    return FrameReader(messages.TO_ENGINE, messages.MAX_TO_ENGINE_BYTES)


def frontend_side_reader() -> FrameReader[ToFrontend]:
    """Reads what the engine sends."""
    return FrameReader(messages.TO_FRONTEND, messages.MAX_TO_FRONTEND_BYTES)
