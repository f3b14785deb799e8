"""The frontend's view of the engine: is it there, is there room, whose request is whose.

The connection is kept up by one task: an engine that dies takes its open requests with it (each raises EngineGone)
and is waited for again; until it is back every new request is refused with 503.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import orjson

from zerokl.errors import InvalidRequest, NoRoom
from zerokl.server.fields import message, shown
from zerokl.server.job import Job
from zerokl.server.prompts import Limits
from zerokl.wire.client import EngineClient, EngineGone, Stream
from zerokl.wire.messages import Heartbeat, Hello
from zerokl.wire.records import Record

log = logging.getLogger(__name__)

SILENT_S = 20.0
"""An engine whose loop said nothing for so long is not healthy."""


class Engine:
    """The engine behind a socket. Belongs to one event loop."""

    def __init__(self, socket: Path, max_in_flight: int) -> None:
        self.max_in_flight = max_in_flight
        self.draining = False
        self.in_flight = 0
        self._socket = socket
        self._client: EngineClient | None = None
        self._was_there = False
        self._names: dict[Stream, str] = {}
        self._keeper: asyncio.Task[None] | None = None

    # ---- is it there?

    def start(self, connected: Callable[[], object] = lambda: None) -> None:
        """Begin to connect, and to re-connect for as long as the frontend lives; tells of the first time."""
        self._keeper = asyncio.create_task(self._keep_connected(connected))

    async def stop(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
        if self._client is not None:
            self._client.close()

    @property
    def trouble(self) -> str | None:
        """Why no request can be taken now ("starting", "draining", "engine_down"), or None."""
        if self.draining:
            return "draining"
        if self._client is None:
            return "engine_down" if self._was_there else "starting"
        return None if self._client.silence_s() < SILENT_S else "engine_down"

    @property
    def client(self) -> EngineClient:
        """The live connection. Raises NoRoom (503) if there is none or the server is going down."""
        trouble = self.trouble
        if trouble is not None or self._client is None:
            code = trouble or "engine_down"
            raise NoRoom(message(code), code=code, status=503)
        return self._client

    @property
    def hello(self) -> Hello:
        return self.client.greeting

    @property
    def heartbeat(self) -> Heartbeat | None:
        """The engine's last, with its queue depths."""
        return self._client.heartbeat if self._client is not None else None

    @property
    def facts(self) -> dict[str, Any]:
        """What the engine tells about the model and itself."""
        facts: dict[str, Any] = orjson.loads(self.hello.facts)
        return facts

    @property
    def limits(self) -> Limits:
        hello = self.hello
        return Limits(hello.vocab, hello.context)

    @property
    def fingerprint(self) -> str:
        """The engine's, or "" while there is none (error answers carry the header too)."""
        return self._client.greeting.fingerprint if self._client is not None else ""

    # ---- requests

    @contextlib.asynccontextmanager
    async def running(
        self, jobs: Sequence[Job], names: Sequence[str], *, unique: bool = False, admitted: bool = False
    ) -> AsyncIterator[AsyncIterator[tuple[int, Record]]]:
        """Submit the jobs; gives (job's place, record) as they come. Whatever still runs at the exit is aborted.

        Raises NoRoom (429, 503) or, if names must be unique (a client chose them), InvalidRequest 409 for one in use;
        both before anything is submitted. `admitted`: room or not (health probes).
        """
        client = self.client
        if not admitted:
            self._admit(len(jobs))
        if unique:
            self._refuse_used(names)
        self.in_flight += len(jobs)
        streams: list[Stream] = []
        try:
            for name, job in zip(names, jobs, strict=True):
                streams.append(_submit(client, job))
                self._names[streams[-1]] = name
            async with _merged(streams) as records:
                yield records
        finally:
            self.in_flight -= len(jobs)
            for stream in streams:
                self._names.pop(stream, None)
                if not stream.finished:
                    stream.discard()

    def _refuse_used(self, names: Sequence[str]) -> None:
        used = set(self._names.values())
        for name in names:
            if name in used:
                text = message("rid_in_use", value=shown(name))
                raise InvalidRequest(text, param="rid", code="rid_in_use", status=409)

    def abort(self, rid: str | None) -> None:
        """End the request of this name, or its batch (rid_0, rid_1, ...); None: all. Unknown: nothing happens."""
        batch = re.compile(re.escape(rid or "") + r"(_[0-9]+)?")
        for stream, name in self._names.items():
            if rid is None or batch.fullmatch(name):
                stream.abort()

    async def control(self, name: str, **args: Any) -> dict[str, Any]:
        return await self.client.control(name, **args)

    def _admit(self, asked: int) -> None:
        if asked > self.max_in_flight:
            raise InvalidRequest(message("batch_capacity", total=asked, limit=self.max_in_flight))
        if self.in_flight + asked > self.max_in_flight:
            raise NoRoom(message("queue_full", running=self.in_flight, asked=asked, limit=self.max_in_flight))

    async def _keep_connected(self, connected: Callable[[], object]) -> None:
        while True:
            try:
                self._client = await EngineClient.connect(self._socket, timeout_s=3600)
            except EngineGone as gone:
                log.debug("no engine yet: %s", gone)
                await asyncio.sleep(0.05)
                continue
            if not self._was_there:
                self._was_there = True
                connected()
            await self._client.closed.wait()
            self._client = None
            log.warning("the engine hung up; waiting for the next one")


def _submit(client: EngineClient, job: Job) -> Stream:
    return client.submit(
        job.prompt.ids,
        sampling=job.sampling,
        stopping=job.stopping,
        max_new_tokens=job.max_new_tokens,
        min_new_tokens=job.min_new_tokens,
        logprobs=job.logprobs,
        skip_special_tokens=job.skip_special_tokens,
        spaces_between_special_tokens=job.spaces_between_special_tokens,
        stream_interval=job.stream_interval,
        priority=job.priority,
        cache_salt=job.cache_salt,
        use_cache=job.use_cache,
        grammar=job.grammar,
    )


@contextlib.asynccontextmanager
async def _merged(streams: Sequence[Stream]) -> AsyncIterator[AsyncIterator[tuple[int, Record]]]:
    """The records of several streams as they come. Order between streams means nothing; within one it is kept."""
    if len(streams) == 1:
        yield _numbered(streams[0])
        return
    queue: asyncio.Queue[tuple[int, Record | EngineGone]] = asyncio.Queue()
    tasks = [asyncio.create_task(_pump(place, stream, queue)) for place, stream in enumerate(streams)]
    try:
        yield _drained(queue, len(streams))
    finally:
        for task in tasks:
            task.cancel()


async def _numbered(stream: Stream) -> AsyncIterator[tuple[int, Record]]:
    async for record in stream:
        yield 0, record


async def _pump(place: int, stream: Stream, queue: asyncio.Queue[tuple[int, Record | EngineGone]]) -> None:
    try:
        async for record in stream:
            queue.put_nowait((place, record))
    except EngineGone as gone:
        queue.put_nowait((place, gone))


async def _drained(
    queue: asyncio.Queue[tuple[int, Record | EngineGone]], open_streams: int
) -> AsyncIterator[tuple[int, Record]]:
    while open_streams:
        place, record = await queue.get()
        if isinstance(record, EngineGone):
            raise record
        open_streams -= record.done is not None
        yield place, record
