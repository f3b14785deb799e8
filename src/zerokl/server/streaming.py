"""Records as server-sent events: one frame per record, never joined, never split."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any

from zerokl.server.exchange import Exchange
from zerokl.server.service import refused
from zerokl.wire.records import Record

FramesOf = Callable[[int, Record], Sequence[Any]]


async def send(
    exchange: Exchange, records: AsyncIterator[tuple[int, Record]], frames_of: FramesOf, closing: Iterable[Any] = ()
) -> None:
    """The whole stream. The head goes out with the first frame, so a refusal before it is still a real 4xx.

    Raises the refusal or failure that ends a job; after the head the dispatcher makes it a frame. `closing` is read
    when all records have come.
    """
    async for place, record in records:
        if record.done is not None and (refusal := refused(record.done)):
            raise refusal
        for frame in frames_of(place, record):
            await exchange.frame(frame)
    for frame in closing:
        await exchange.frame(frame)
    await exchange.close_stream()


def says_something(record: Record) -> bool:
    """False for a record that only brings scores of the prompt: it is no frame, or chunking would show."""
    return bool(record.tokens) or record.done is not None
