"""Requests in flight: who gets in, under which name, who is aborted, and their records as they come.

A request is admitted whole while there is a place free. Of a batch that is larger than the places that are left, the
rest waits here and is submitted as places become free, so the engine never has to refuse a part of it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from zerokl.errors import InvalidRequest, NoRoom
from zerokl.server.fields import message, shown
from zerokl.server.job import Job
from zerokl.server.meter import Meter, Trip
from zerokl.wire.client import EngineClient, EngineGone, Stream
from zerokl.wire.messages import Done
from zerokl.wire.records import Record

Records = AsyncIterator[tuple[int, Record]]
"""(the job's place in its request, record). Order between jobs means nothing; within one it is kept."""


@dataclass(eq=False, slots=True)
class Flight:
    """One job from its admission to its last record; iterate once, after `depart`."""

    name: str
    job: Job
    stream: Stream | None = None
    """None while it waits for a place."""
    aborted: bool = False
    ended: bool = False
    trip: Trip = field(kw_only=True)

    def depart(self, client: EngineClient) -> None:
        """Submit it, unless it was aborted while it waited."""
        if not self.aborted:
            self.stream = submit(client, self.job)

    def abort(self) -> None:
        """It still ends normally, with the tokens so far."""
        self.aborted = True
        if self.stream is not None:
            self.stream.abort()

    def leave(self) -> None:
        """Nobody wants its records any more."""
        self.trip.leave()
        if self.stream is not None and not self.stream.finished:
            self.stream.discard()

    def __aiter__(self) -> AsyncIterator[Record]:
        return self

    async def __anext__(self) -> Record:
        if self.stream is None:
            if self.ended:
                raise StopAsyncIteration
            self.ended = True
            return Record(0, done=Done(0, "abort", message="Aborted"))
        record = await self.stream.__anext__()
        self.trip.take(record)
        return record


class Flights:
    """All requests of this frontend. `places`: how many the engine may have at a time."""

    def __init__(self, places: int) -> None:
        self.places = places
        self.meter = Meter()
        self.free = asyncio.Semaphore(places)
        self._flights: dict[Flight, None] = {}

    def __len__(self) -> int:
        return len(self._flights)

    def running(
        self, client: EngineClient, jobs: Sequence[Job], names: Sequence[str], *, unique: bool = False
    ) -> Running:
        """Run the jobs, inside `async with ... as records`. What is not finished at the exit is aborted.

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
        return Running(self, client, flights)

    def enter(self, flights: Sequence[Flight]) -> None:
        self._flights |= dict.fromkeys(flights)

    def leave(self, flights: Sequence[Flight]) -> None:
        for flight in flights:
            del self._flights[flight]
            flight.leave()

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


class Running:
    """Flights that are on their way for as long as the block lasts.

    Classes, because a context manager and two generators made of functions took a tenth of a request's work.
    """

    def __init__(self, owner: Flights, client: EngineClient, flights: Sequence[Flight]) -> None:
        self._owner = owner
        self._client = client
        self._flights = flights
        self._records: Alone | Together | None = None

    async def __aenter__(self) -> Records:
        self._owner.enter(self._flights)
        kind = Alone if len(self._flights) == 1 else Together
        self._records = kind(self._client, self._flights, self._owner.free)
        return self._records

    async def __aexit__(self, *_: object) -> None:
        if self._records is not None:
            self._records.close()
        self._owner.leave(self._flights)


class Alone:
    """A lone job's records, without a task between."""

    def __init__(self, client: EngineClient, flights: Sequence[Flight], free: asyncio.Semaphore) -> None:
        [self._flight] = flights
        self._client = client
        self._free = free
        self._has_place = False

    def close(self) -> None:
        if self._has_place:
            self._free.release()

    def __aiter__(self) -> Records:
        return self

    async def __anext__(self) -> tuple[int, Record]:
        if not self._has_place:
            self._has_place = await self._free.acquire()
            self._flight.depart(self._client)
        return 0, await self._flight.__anext__()


class Together:
    """The records of several jobs as they come, each job flown by a task."""

    def __init__(self, client: EngineClient, flights: Sequence[Flight], free: asyncio.Semaphore) -> None:
        self._queue: asyncio.Queue[tuple[int, Record | EngineGone]] = asyncio.Queue()
        self._left = len(flights)
        self._tasks = [
            asyncio.create_task(self._fly(client, place, flight, free)) for place, flight in enumerate(flights)
        ]

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    def __aiter__(self) -> Records:
        return self

    async def __anext__(self) -> tuple[int, Record]:
        if not self._left:
            raise StopAsyncIteration
        place, record = await self._queue.get()
        if isinstance(record, EngineGone):
            raise record
        self._left -= record.done is not None
        return place, record

    async def _fly(self, client: EngineClient, place: int, flight: Flight, free: asyncio.Semaphore) -> None:
        try:
            async with free:
                flight.depart(client)
                async for record in flight:
                    self._queue.put_nowait((place, record))
        except EngineGone as gone:
            self._queue.put_nowait((place, gone))


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
