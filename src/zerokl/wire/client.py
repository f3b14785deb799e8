"""The frontend's end of the wire, on asyncio: many requests over one connection.

    client = await EngineClient.connect(path)
    stream = client.submit([1, 2, 3], max_new_tokens=8)
    async for record in stream:            # ends after the record with `done`
        ...

A stream that is left early must be aborted (`stream.abort()`); a lost engine raises `EngineGone` in all of them.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import orjson

from zerokl.errors import CallerError, NoRoom
from zerokl.wire.frames import Columns, Frame, WireError, encode, frontend_side_reader
from zerokl.wire.messages import (
    PROTOCOL,
    Abort,
    Answer,
    Control,
    Grammar,
    Heartbeat,
    Hello,
    LogprobOptions,
    Sampling,
    Step,
    Stopping,
    Submit,
    ToFrontend,
)
from zerokl.wire.records import Record, decode_step

NO_SAMPLING = Sampling()
NO_STOPPING = Stopping()


class EngineGone(NoRoom):
    """The engine hung up, or was never there."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="engine_down", status=503)


class ControlError(CallerError):
    """A control call that the engine answered with no."""


class Stream:
    """The records of one request, in order; iterate once."""

    def __init__(self, client: EngineClient, rid: int) -> None:
        self.rid = rid
        self.finished = False
        self._client = client
        self._records: deque[Record] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._failure: EngineGone | None = None

    def abort(self, message: str = "Aborted") -> None:
        """Ask the engine to end the request; it still sends a last record, with finish kind abort. Idempotent."""
        if not self.finished:
            self._client.abort(self.rid, message)

    def discard(self) -> None:
        """Abort, and want no more records: the client of this request is gone."""
        self.abort()
        self._client._forget(self.rid)
        self.finished = True

    def __aiter__(self) -> AsyncIterator[Record]:
        return self

    async def __anext__(self) -> Record:
        while not self._records:
            if self._failure is not None:
                raise self._failure
            if self.finished:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._records.popleft()

    def _put(self, record: Record) -> None:
        self._records.append(record)
        self.finished = record.done is not None
        self._wake()

    def _fail(self, failure: EngineGone) -> None:
        self._failure = failure
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        self._waiter = None


class EngineClient(asyncio.Protocol):
    """One connection to an engine. Not thread-safe: belongs to its event loop."""

    def __init__(self) -> None:
        self.hello: Hello | None = None
        self.heartbeat: Heartbeat | None = None
        self.closed = asyncio.Event()
        self._transport: asyncio.Transport | None = None
        self._unsent: list[bytes] = []
        self._reader = frontend_side_reader()
        self._streams: dict[int, Stream] = {}
        self._calls: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._next_id = 1
        self._heard_at = time.monotonic()
        self._greeted: asyncio.Future[Hello] = asyncio.get_running_loop().create_future()
        self._greeted.add_done_callback(lambda future: future.exception())  # may be wanted by nobody

    @classmethod
    async def connect(cls, path: str | Path, *, timeout_s: float = 10.0) -> EngineClient:
        """Connect and wait for the engine's hello; tries again until the time is over, then raises EngineGone."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                _, client = await asyncio.get_running_loop().create_unix_connection(cls, str(path))
                break
            except OSError as error:
                if time.monotonic() >= deadline:
                    raise EngineGone(f"no engine answers: {error.strerror or error}") from error
                await asyncio.sleep(0.05)
        try:
            await asyncio.wait_for(asyncio.shield(client._greeted), max(0.1, deadline - time.monotonic()))
        except TimeoutError as error:
            client.close()
            raise EngineGone("the engine accepted the connection but said no hello") from error
        return client

    @property
    def greeting(self) -> Hello:
        """The engine's hello; there from `connect` on."""
        if self.hello is None:
            raise EngineGone("the engine said no hello yet")
        return self.hello

    @property
    def num_streams(self) -> int:
        """Requests in flight on this connection."""
        return len(self._streams)

    def silence_s(self) -> float:
        """Seconds since the engine's loop last said anything."""
        return time.monotonic() - self._heard_at

    def submit(
        self,
        prompt: Sequence[int],
        *,
        sampling: Sampling = NO_SAMPLING,
        stopping: Stopping = NO_STOPPING,
        max_new_tokens: int | None = None,
        min_new_tokens: int = 0,
        logprobs: LogprobOptions | None = None,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
        stream_interval: int = 1,
        priority: int = 0,
        cache_salt: str = "",
        use_cache: bool = True,
        grammar: Grammar | None = None,
    ) -> Stream:
        """Send one request. A refusal arrives as its only record, with `done.status` set."""
        columns = Columns()
        rid = self._take_id()
        message = Submit(
            rid,
            columns.add(array("i", prompt).tobytes()),
            sampling,
            stopping,
            max_new_tokens,
            min_new_tokens,
            logprobs,
            skip_special_tokens,
            spaces_between_special_tokens,
            stream_interval,
            priority,
            cache_salt,
            use_cache,
            grammar,
        )
        stream = Stream(self, rid)
        self._send(encode(message, columns))
        self._streams[rid] = stream
        return stream

    def abort(self, rid: int, message: str = "Aborted") -> None:
        """End a request; nothing happens if it is unknown, finished, or the engine is gone."""
        if rid in self._streams and not self.closed.is_set():
            self._send(encode(Abort(rid, message)))

    async def control(self, name: str, **args: Any) -> dict[str, Any]:
        """A control call and its answer. Raises ControlError with the engine's reason."""
        call = self._take_id()
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._send(encode(Control(call, name, orjson.dumps(args).decode())))
        self._calls[call] = answer
        try:
            return await answer
        finally:
            self._calls.pop(call, None)

    def close(self) -> None:
        """Hang up; the engine aborts what this connection has in flight."""
        if self._transport is not None:
            self._transport.abort()

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._heard_at = time.monotonic()
        try:
            for frame in self._reader.feed(data):
                self._receive(frame)
        except WireError as error:
            self.connection_lost(error)
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.closed.is_set():
            return
        self.closed.set()
        gone = EngineGone(f"the engine hung up: {exc}" if exc else "the engine hung up")
        if not self._greeted.done():
            self._greeted.set_exception(gone)
        self._fail_all(self._streams.values(), gone)
        self._streams.clear()
        for answer in self._calls.values():
            if not answer.done():
                answer.set_exception(gone)

    # ----

    @staticmethod
    def _fail_all(streams: Iterable[Stream], gone: EngineGone) -> None:
        for stream in streams:
            stream._fail(gone)

    def _receive(self, frame: Frame[ToFrontend]) -> None:
        message = frame.message
        if isinstance(message, Step):
            for record in decode_step(cast(Frame[Step], frame)):
                self._deliver(record)
        elif isinstance(message, Heartbeat):
            self.heartbeat = message
        elif isinstance(message, Answer):
            self._answer(message)
        else:
            self._greet(message)

    def _greet(self, hello: Hello) -> None:
        if hello.protocol != PROTOCOL:
            raise WireError(f"the engine speaks protocol {hello.protocol}, this frontend {PROTOCOL}")
        self.hello = hello
        if not self._greeted.done():
            self._greeted.set_result(hello)

    def _deliver(self, record: Record) -> None:
        stream = self._streams.get(record.rid)
        if stream is None:
            return  # discarded; the engine has its abort by now
        if record.done is not None:
            del self._streams[record.rid]
        stream._put(record)

    def _answer(self, message: Answer) -> None:
        answer = self._calls.pop(message.call, None)
        if answer is None or answer.done():
            return
        body: dict[str, Any] = orjson.loads(message.body)
        if message.ok:
            answer.set_result(body)
        else:
            answer.set_exception(ControlError(str(body.get("message", "refused"))))

    def _forget(self, rid: int) -> None:
        self._streams.pop(rid, None)

    def _take_id(self) -> int:
        self._next_id += 1
        return self._next_id - 1

    def _send(self, frame: bytes) -> None:
        if self._transport is None or self.closed.is_set():
            raise EngineGone("the engine hung up")
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unsent.append(frame)

    def _flush(self) -> None:
        """What one turn of the event loop said, in one write."""
        unsent, self._unsent = self._unsent, []
        if self._transport is not None and not self.closed.is_set():
            self._transport.write(b"".join(unsent))
