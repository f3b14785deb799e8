"""One HTTP exchange over raw ASGI: the body in, one answer or one stream out, and the client that goes away.

A stream's frame is one body message, so one HTTP chunk: clients that split their input by chunk depend on it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

import orjson

from zerokl.server.errors import Headers, Refusal
from zerokl.server.fields import message
from zerokl.server.validate import Values, parse_object

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"
EVENTS = "text/event-stream; charset=utf-8"
STALLED_S = 60.0
"""A client that takes no byte of its stream for so long is given up."""


class ClientGone(Exception):
    """Nobody reads the answer any more."""


class Exchange:
    """A request and its answer. `headers` go on every answer; a handler adds to them before it answers."""

    def __init__(self, scope: Message, receive: Receive, send: Send, max_body_bytes: int) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.query: bytes = scope["query_string"]
        self.headers: list[tuple[str, str]] = []
        self.request_id = ""
        """The client's, or ours."""
        self.head_sent = False
        self.status = 0
        """Of the answer; 0 while there is none, and for good if the client left before."""
        self.finished = False
        self._given = dict(scope["headers"])
        self._receive = receive
        self._send = send
        self._max_body_bytes = max_body_bytes
        self._writing_since: float | None = None
        """Since when the client's buffers are full."""

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

    async def json(self) -> Values:
        """The body as one JSON object."""
        return parse_object(await self.body())

    def _too_large(self) -> Refusal:
        return Refusal(413, message("too_large", limit=self._max_body_bytes), code="request_too_large")

    @contextlib.asynccontextmanager
    async def client_watched(self) -> AsyncIterator[None]:
        """Inside, a client that goes away, or takes no byte for too long, ends the work where it awaits, as ClientGone.

        Needs the body to be read.
        """
        work, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert work is not None
        gone = False
        looking = loop.call_later(STALLED_S / 4, lambda: look())

        async def watch() -> None:
            nonlocal gone
            while (await self._receive())["type"] != "http.disconnect":
                pass
            if not self.finished:
                gone = True
                work.cancel()

        def look() -> None:
            """At times, because a time limit for each frame took a tenth of a stream's work."""
            nonlocal gone, looking
            if self._writing_since is not None and loop.time() - self._writing_since > STALLED_S:
                gone = True
                work.cancel()
            else:
                looking = loop.call_later(STALLED_S / 4, look)

        watcher = asyncio.create_task(watch())
        try:
            yield
        except asyncio.CancelledError:
            if not gone:
                raise
            work.uncancel()
            raise ClientGone from None
        finally:
            watcher.cancel()
            looking.cancel()

    # ---- out

    async def answer(self, status: int, body: bytes = b"", content_type: str = JSON, headers: Headers = ()) -> None:
        """The whole answer. An empty body has no content type."""
        typed = (("content-type", content_type),) if body else ()
        await self._start(status, (*typed, ("content-length", str(len(body))), *headers))
        self.finished = True
        await self._write(b"" if self.method == "HEAD" else body, more=False)

    async def answer_json(self, value: Any, status: int = 200) -> None:
        await self.answer(status, orjson.dumps(value))

    async def open_stream(self) -> None:
        """Write the head of a stream: from here on an error can only be a frame."""
        await self._start(200, (("content-type", EVENTS), ("cache-control", "no-cache"), ("x-accel-buffering", "no")))

    async def frame(self, value: Any) -> None:
        """One event. JSON is one line, so it never needs a second `data:`. Waits while the client's buffers are full;
        for how long, `client_watched` watches.
        """
        body = b"data: " + orjson.dumps(value) + b"\n\n"
        self._writing_since = asyncio.get_running_loop().time()
        await self._send({"type": "http.response.body", "body": body, "more_body": True})
        self._writing_since = None

    async def close_stream(self) -> None:
        await self._write(b"data: [DONE]\n\n", more=True)
        self.finished = True
        await self._write(b"", more=False)

    async def _start(self, status: int, headers: Headers) -> None:
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in (*headers, *self.headers)]
        self.head_sent = True
        self.status = status
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def _write(self, body: bytes, more: bool) -> None:
        """Waits while the client's buffers are full, but not for ever."""
        try:
            async with asyncio.timeout(STALLED_S):
                await self._send({"type": "http.response.body", "body": body, "more_body": more})
        except TimeoutError:
            raise ClientGone from None
