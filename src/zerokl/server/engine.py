"""The frontend's view of the engine: is it there, and what does it say about itself.

The connection is kept up by one task: an engine that dies takes its open requests with it (each raises EngineGone)
and is waited for again; until it is back every new request is refused with 503.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson

from zerokl.errors import NoRoom
from zerokl.server.fields import message
from zerokl.server.flights import Flights, Running
from zerokl.server.job import Job
from zerokl.server.prompts import Limits
from zerokl.wire.client import EngineClient, EngineGone
from zerokl.wire.messages import Heartbeat, Hello

log = logging.getLogger(__name__)

SILENT_S = 20.0
"""An engine that said nothing for so long is not healthy. A long step is no silence: heartbeats go on."""


class Engine:
    """The engine behind a socket. Belongs to one event loop."""

    def __init__(self, socket: Path, places: int, watchdog_s: float = 300.0) -> None:
        """`watchdog_s`: a step that takes longer is stuck."""
        self.flights = Flights(places)
        self._watchdog_s = watchdog_s
        self.draining = False
        self._socket = socket
        self._client: EngineClient | None = None
        self._was_there = False
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
        beat = self._client.heartbeat
        is_stuck = beat is not None and beat.busy_ms > 1000 * self._watchdog_s
        return "engine_down" if is_stuck or self._client.silence_s() >= SILENT_S else None

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
    def page_size(self) -> int:
        """Of the engine's cache; 0 while there is none."""
        return self._client.greeting.page_size if self._client is not None else 0

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

    def running(self, jobs: Sequence[Job], names: Sequence[str], *, unique: bool = False) -> Running:
        """Run the jobs on the engine that is there now, see `Flights.running`. Raises NoRoom (503) if there is none."""
        return self.flights.running(self.client, jobs, names, unique=unique)

    async def control(self, name: str, **args: Any) -> dict[str, Any]:
        return await self.client.control(name, **args)

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
