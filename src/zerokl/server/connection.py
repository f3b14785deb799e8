"""uvicorn's HTTP/1.1 connection with a short way out, and a bell that rings when the client is gone.

ASGI's messages take a write for a head and one for its body, and a task that waits for the disconnect. Here an answer
is one write, a frame is one write, and a client that goes away or stops to read calls `gone` on its connection.
It stands on uvicorn's insides: the install asks for the version that tests/http/test_connection.py ran with, or later.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from http import HTTPStatus

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

STALLED_S = 60.0
"""A client whose buffers stay full for so long is given up, and one that sends nothing of a request it has begun."""
MAX_HEAD_BYTES = 64 * 1024
"""Of a head that doesn't end; then it is answered 400 and hung up on. The parser itself has no limit."""
OUTLET = "zerokl.outlet"
"""The ASGI extension under which an exchange finds its way out."""
STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus}


UPGRADE = re.compile(rb"\nupgrade *:", re.IGNORECASE)
BEGUN = re.compile(rb"\n(?:\r|u(?:p(?:g(?:r(?:a(?:de?)?)?)?)?)?)?\Z", re.IGNORECASE)
"""What may become such a header with the next packet."""


def without_upgrade(head: bytes) -> bytes:
    """With another name for a wish to speak WebSocket or HTTP/2, which Java's client has on every first request.

    It is answered as if it hadn't asked; the parser would take its body for the other protocol.
    """
    end = head.find(b"\r\n\r\n")
    end = len(head) if end < 0 else end
    return UPGRADE.sub(lambda found: found[0].lower().replace(b"upgrade", b"ignored"), head[:end]) + head[end:]


def without_beginning(data: bytes) -> tuple[bytes, bytes]:
    """What can be read now, and what waits for the next packet: a line's beginning, in a head that has not ended."""
    found = BEGUN.search(data, max(0, len(data) - 100))
    if found is None or b"\n\r\n" in data or data.endswith(b"\n\n"):
        return data, b""
    return data[: found.start()], data[found.start() :]


class Connection(HttpToolsProtocol):
    """One client. `gone` is called once when it hangs up, or is hung up on because it reads nothing."""

    gone: Callable[[], None] | None = None
    _stalled: asyncio.TimerHandle | None = None
    _head_bytes: int | None = None
    """Received of a head that isn't complete; None outside of one."""
    _incomplete = False
    """A request has begun and not all of it has come."""
    _unheard: asyncio.TimerHandle | None = None
    _begun = b""
    """The end of the last packet: the beginning of a header's name that we don't know yet."""

    def data_received(self, data: bytes) -> None:
        data, self._begun = self._begun + data, b""
        if self._head_bytes is not None or not self._incomplete:
            data, self._begun = without_beginning(data)
            if UPGRADE.search(data):
                data = without_upgrade(data)
        super().data_received(data)
        self._watch_for_silence()
        if self._head_bytes is not None:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
                self.send_400_response("The head of the request is too long.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_bytes = 0
        self._incomplete = True

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._incomplete = False

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._head_bytes = None
        self.scope["extensions"] = {OUTLET: {OUTLET: Outlet(self, self.cycle)}}

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._forget_stall()
        self._incomplete = False
        self._watch_for_silence()
        if self.gone is not None:
            self.gone()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self.loop.call_later(STALLED_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._forget_stall()

    def _watch_for_silence(self) -> None:
        if self._unheard is not None:
            self._unheard.cancel()
            self._unheard = None
        if self._incomplete:
            self._unheard = self.loop.call_later(STALLED_S, self._give_up)

    def _give_up(self) -> None:
        """Unless it is we who don't read, or who still answer the request before."""
        in_head, cycle = self._head_bytes is not None, self.cycle
        if self.flow.read_paused or self.pipeline or (in_head and cycle is not None and not cycle.response_complete):
            self._watch_for_silence()
        else:
            self.transport.abort()

    def _forget_stall(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None


class Outlet:
    """The way out of one exchange: a head and a body at once, or a head and chunks."""

    __slots__ = ("_chunked", "_cycle", "_head", "connection")

    def __init__(self, connection: Connection, cycle: RequestResponseCycle) -> None:
        self.connection = connection
        self._cycle = cycle
        self._head = b""
        self._chunked = True

    def is_shut(self) -> bool:
        """The client is gone. uvicorn hears of it a moment later, and would call a half answer the app's mistake."""
        if self._cycle.transport.is_closing():
            self._cycle.disconnected = True
            return True
        return False

    async def answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        """All of it. Raises ConnectionError if nobody is there."""
        await self._write(self._head_of(status, headers) + body)
        self._complete()

    def open(self, status: int, headers: list[tuple[str, str]]) -> None:
        """A head that goes out with the first chunk. HTTP/1.0 knows no chunks: the connection's end is the end."""
        self._chunked = self._cycle.scope["http_version"] != "1.0"
        if self._chunked:
            headers = [*headers, ("transfer-encoding", "chunked")]
        self._head = self._head_of(status, headers)

    async def chunk(self, body: bytes, last: bytes = b"") -> None:
        """One chunk in one write, with what goes before and after it. Waits while the client's buffers are full."""
        if self._chunked:
            body = b"%b%x\r\n%b\r\n%b" % (self._head, len(body), body, last)
        else:
            body = self._head + body
        self._head = b""
        await self._write(body)

    async def close(self, body: bytes) -> None:
        """The last chunk."""
        await self.chunk(body, b"0\r\n\r\n")
        self._complete()

    def _head_of(self, status: int, headers: list[tuple[str, str]]) -> bytes:
        self._cycle.response_started = True
        self._cycle.waiting_for_100_continue = False
        lines = [f"{name}: {value}\r\n" for name, value in headers]
        if not self._cycle.keep_alive:
            lines.append("connection: close\r\n")
        return "".join((STATUS_LINES[status], *lines, "\r\n")).encode("latin-1")

    async def _write(self, written: bytes) -> None:
        if self._cycle.flow.write_paused:
            await self._cycle.flow.drain()
        if self.is_shut():
            raise ConnectionError("the client is gone")
        self._cycle.transport.write(written)

    def _complete(self) -> None:
        """What uvicorn does at an answer's end: wake who waits, then the next request or the keep-alive timer."""
        cycle = self._cycle
        cycle.response_complete = True
        cycle.message_event.set()
        if not cycle.keep_alive:
            cycle.transport.close()
        cycle.on_response()
