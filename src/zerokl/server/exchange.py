"""One HTTP exchange over raw ASGI: the body in, one answer or one stream out, and the client that goes away.

A stream's frame is one body message, so one HTTP chunk: clients that split their input by chunk depend on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import orjson

from zerokl.server.connection import OUTLET, Outlet
from zerokl.server.errors import Headers, Refusal
from zerokl.server.fields import message
from zerokl.server.validate import Values, parse_object

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"
EVENTS = "text/event-stream; charset=utf-8"
LONG_BODY = 64 * 1024
"""Bytes; a longer body is read off the event loop."""
HEAVY_BODY = 1 << 20
"""Bytes; of longer bodies few are held and fewer are understood at a time, because what they become takes many times
their length. The others wait in their clients' hands."""
STREAM_HEADERS = (("content-type", EVENTS), ("cache-control", "no-cache"), ("x-accel-buffering", "no"))


class ClientGone(ConnectionError):
    """Nobody reads the answer any more."""


class Gates:
    """Places for heavy bodies, of one server."""

    def __init__(self) -> None:
        self.reading = asyncio.Semaphore(16)
        self.understanding = asyncio.Semaphore(4)


class Exchange:
    """A request and its answer. `headers` go on every answer; a handler adds to them before it answers."""

    def __init__(self, scope: Message, receive: Receive, max_body_bytes: int, gates: Gates) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.query: bytes = scope["query_string"]
        self.headers: list[tuple[str, str]] = []
        self.request_id = ""
        """The client's, or ours."""
        self.received = 0
        """Bytes of the body, when it was read."""
        self.head_sent = False
        self.status = 0
        """Of the answer; 0 while there is none, and for good if the client left before."""
        self.finished = False
        self._given = dict(scope["headers"])
        self._receive = receive
        self._outlet: Outlet = scope["extensions"][OUTLET][OUTLET]
        self._max_body_bytes = max_body_bytes
        self._gates = gates
        self._held: list[asyncio.Semaphore] = []

    def header(self, name: bytes) -> bytes:
        """A header of the request; b"" if it isn't there."""
        value: bytes = self._given.get(name, b"")
        return value

    # ---- in

    async def body(self) -> bytes:
        """The whole body. Raises Refusal 413 past the limit, ClientGone if it never ends."""
        declared = self.header(b"content-length")
        if declared.isdigit() and int(declared) > self._max_body_bytes:
            raise self._too_large()
        if declared.isdigit() and int(declared) >= HEAVY_BODY:
            await self._hold(self._gates.reading)
        parts: list[bytes] = []
        size = 0
        while True:
            event = await self._receive()
            if event["type"] == "http.disconnect":
                raise ClientGone
            parts.append(event.get("body", b""))
            size += len(parts[-1])
            if size > self._max_body_bytes:
                raise self._too_large()
            if not event.get("more_body", False):
                return b"".join(parts)
            if size >= HEAVY_BODY and not self._held:
                await self._hold(self._gates.reading)

    async def json(self) -> Values:
        """The body as one JSON object."""
        body = await self.body()
        self.received = len(body)
        if len(body) < LONG_BODY:
            return parse_object(body)
        if len(body) >= HEAVY_BODY:
            await self._hold(self._gates.understanding)
        return await asyncio.to_thread(parse_object, body)

    async def _hold(self, gate: asyncio.Semaphore) -> None:
        await gate.acquire()
        self._held.append(gate)

    def understood(self) -> None:
        """Another heavy body may have the places of this one, if it had any."""
        while self._held:
            self._held.pop().release()

    def _too_large(self) -> Refusal:
        return Refusal(413, message("too_large", limit=self._max_body_bytes), code="request_too_large")

    def client_watched(self) -> Watched:
        """Inside, a client that goes away, or reads nothing for long, ends the work where it awaits, as ClientGone.

        Its body has been understood.
        """
        self.understood()
        return Watched(self, self._outlet)

    # ---- out

    async def answer(self, status: int, body: bytes = b"", content_type: str = JSON, headers: Headers = ()) -> None:
        """The whole answer. An empty body has no content type."""
        typed = (("content-type", content_type),) if body else ()
        self.head_sent, self.finished, self.status = True, True, status
        head = [*typed, ("content-length", str(len(body))), *headers, *self.headers]
        await self._outlet.answer(status, head, b"" if self.method == "HEAD" else body)

    async def answer_json(self, value: Any, status: int = 200) -> None:
        await self.answer(status, orjson.dumps(value))

    async def frame(self, value: Any) -> None:
        """One event. JSON is one line, so it never needs a second `data:`. Waits while the client's buffers are full.

        The first brings the head: from there on an error can only be a frame.
        """
        if not self.head_sent:
            self.head_sent, self.status = True, 200
            self._outlet.open(200, [*STREAM_HEADERS, *self.headers])
        await self._outlet.chunk(b"data: %b\n\n" % orjson.dumps(value))

    async def close_stream(self) -> None:
        self.finished = True
        await self._outlet.close(b"data: [DONE]\n\n")


class Watched:
    """Cancels the work inside when nobody wants it any more. (A task for each request that waits for it cost more.)"""

    __slots__ = ("_connection", "_exchange", "_gone", "_outlet", "_work")

    def __init__(self, exchange: Exchange, outlet: Outlet) -> None:
        self._exchange = exchange
        self._outlet = outlet
        self._connection = outlet.connection
        self._gone = False

    async def __aenter__(self) -> None:
        if self._outlet.is_shut():  # while the request was read and understood: nothing rings any more
            raise ClientGone
        self._work = asyncio.current_task()
        self._connection.gone = self._end

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._connection.gone = None
        if self._gone and kind is asyncio.CancelledError and self._work is not None:
            self._work.uncancel()
            raise ClientGone from None

    def _end(self) -> None:
        if not self._exchange.finished and self._work is not None:
            self._gone = True
            self._work.cancel()
