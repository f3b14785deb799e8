"""Requests in flight: who gets in, under which name, who is aborted, and their records as they come.

A request is admitted whole while there is a place free. Of a batch that is larger than the places that are left, the
rest waits here and is submitted as places become free, so the engine never has to refuse a part of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, field

from zerokl.errors import InvalidRequest, NoRoom
from zerokl.server.fields import message, shown
from zerokl.server.job import Job
from zerokl.server.meter import Meter, Trip
from zerokl.wire.client import EngineClient, EngineGone, Stream
from zerokl.wire.messages import Done
from zerokl.wire.records import Record

Records = AsyncGenerator[tuple[int, Record], None]
"""(the job's place in its request, record). Order between jobs means nothing; within one it is kept."""


@dataclass(eq=False, slots=True)
class Flight:
    """One job from its admission to its last record."""

    name: str
    job: Job
    stream: Stream | None = None
    """None while it waits for a place."""
    aborted: bool = False
    trip: Trip = field(kw_only=True)

    def abort(self) -> None:
        """It still ends normally, with the tokens so far."""
        self.aborted = True
        if self.stream is not None:
            self.stream.abort()


class Flights:
    """All requests of this frontend. `places`: how many the engine may have at a time."""

    def __init__(self, places: int) -> None:
        self.places = places
        self.meter = Meter()
        self._free = asyncio.Semaphore(places)
        self._flights: dict[Flight, None] = {}

    def __len__(self) -> int:
        return len(self._flights)

    @contextlib.asynccontextmanager
    async def running(
        self, client: EngineClient, jobs: Sequence[Job], names: Sequence[str], *, unique: bool = False
    ) -> AsyncIterator[Records]:
        """Run the jobs. What is not finished at the exit is aborted.

        Raises NoRoom (429) or, if names must be unique because a client chose them, InvalidRequest 409 for one in use.
        """
        if len(self) >= self.places:
            raise NoRoom(message("queue_full", running=len(self), limit=self.places))
        if unique:
            self._refuse_used(names)
        flights = [
            Flight(name, job, trip=self.meter.begin(job.stream_interval > 0))
            for name, job in zip(names, jobs, strict=True)
        ]
        self._flights |= dict.fromkeys(flights)
        records = self._alone(client, flights[0]) if len(flights) == 1 else self._together(client, flights)
        try:
            async with contextlib.aclosing(records):
                yield records
        finally:
            for flight in flights:
                del self._flights[flight]
                flight.trip.leave()
                if flight.stream is not None and not flight.stream.finished:
                    flight.stream.discard()

    def abort(self, rid: str | None) -> None:
        """End the request of this name, or its batch (rid_0, rid_1, ...); None: all. Unknown: nothing happens."""
        batch = re.compile(re.escape(rid or "") + r"(_[0-9]+)?")
        for flight in self._flights:
            if rid is None or batch.fullmatch(flight.name):
                flight.abort()

    def _refuse_used(self, names: Sequence[str]) -> None:
        used = {flight.name for flight in self._flights}
        for name in names:
            if name in used:
                text = message("rid_in_use", value=shown(name))
                raise InvalidRequest(text, param="rid", code="rid_in_use", status=409)

    async def _alone(self, client: EngineClient, flight: Flight) -> Records:
        """A lone job's records without a task between."""
        async with self._free, contextlib.aclosing(records_of(client, flight)) as records:
            async for record in records:
                yield 0, record

    async def _together(self, client: EngineClient, flights: Sequence[Flight]) -> Records:
        queue: asyncio.Queue[tuple[int, Record | EngineGone]] = asyncio.Queue()
        tasks = [asyncio.create_task(self._fly(client, *numbered, queue)) for numbered in enumerate(flights)]
        try:
            left = len(flights)
            while left:
                place, record = await queue.get()
                if isinstance(record, EngineGone):
                    raise record
                left -= record.done is not None
                yield place, record
        finally:
            for task in tasks:
                task.cancel()

    async def _fly(
        self, client: EngineClient, place: int, flight: Flight, queue: asyncio.Queue[tuple[int, Record | EngineGone]]
    ) -> None:
        try:
            async with self._free:
                async for record in records_of(client, flight):
                    queue.put_nowait((place, record))
        except EngineGone as gone:
            queue.put_nowait((place, gone))


async def records_of(client: EngineClient, flight: Flight) -> AsyncGenerator[Record, None]:
    """Submits the job, unless it was aborted while it waited."""
    if flight.aborted:
        yield Record(0, done=Done(0, "abort", message="Aborted"))
        return
    flight.stream = submit(client, flight.job)
    async for record in flight.stream:
        flight.trip.take(record)
        yield record


def submit(client: EngineClient, job: Job) -> Stream:
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
