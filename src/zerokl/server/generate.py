"""/generate, the native route: one answer, an array of them, or a stream of cumulative or incremental frames."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from zerokl.server import streaming
from zerokl.server.exchange import Exchange
from zerokl.server.generate_body import GenerateBody
from zerokl.server.generate_request import Generate, parse
from zerokl.server.seeds import name_seeds, name_stream_seeds
from zerokl.server.service import Service, refused
from zerokl.wire.records import Record


async def generate(service: Service, exchange: Exchange) -> None:
    started = time.perf_counter()
    body = await exchange.json()
    request = await parse(body, service.engine.limits, service.tokenizer)
    names = service.names("", request.rids)
    token_text = service.tokenizer.token_text if request.token_texts else None
    bodies = [GenerateBody(job, name, token_text) for job, name in zip(request.jobs, names, strict=True)]
    async with (
        exchange.client_watched(),
        service.engine.running(request.jobs, names, unique=body.get("rid") is not None) as records,
    ):
        answer = _stream if request.stream else _whole
        await answer(service, exchange, request, bodies, records, started)


async def _whole(
    service: Service,
    exchange: Exchange,
    request: Generate,
    bodies: Sequence[GenerateBody],
    records: AsyncIterator[tuple[int, Record]],
    started: float,
) -> None:
    async for place, record in records:
        if refusal := refused(record.done):
            raise refusal
        bodies[place].add(record)
    name_seeds(exchange, [body.seed for body in bodies[:: request.n]])
    latency_s = service.clock.elapsed(started)
    answers = [body.whole(service.config.weight_version, latency_s, request.prompt_ids) for body in bodies]
    await exchange.answer_json(answers if request.listed else answers[0])


async def _stream(
    service: Service,
    exchange: Exchange,
    request: Generate,
    bodies: Sequence[GenerateBody],
    records: AsyncIterator[tuple[int, Record]],
    started: float,
) -> None:
    take = GenerateBody.delta if service.config.incremental_streaming_output else GenerateBody.whole

    def frames(place: int, record: Record) -> Sequence[dict[str, Any]]:
        body = bodies[place]
        body.add(record)
        if not streaming.says_something(record):
            return ()
        if not exchange.head_sent:
            name_stream_seeds(exchange, request.jobs, request.n, body.seed)
        latency_s = service.clock.elapsed(started) if record.done else None
        frame = take(body, service.config.weight_version, latency_s, request.prompt_ids)
        if request.listed:
            frame["index"] = place
        return (frame,)

    await streaming.send(exchange, records, frames)
