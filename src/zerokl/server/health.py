"""Health: /health asks the frontend and never touches the device, /health_generate asks for one real token."""

from __future__ import annotations

import asyncio

from zerokl.errors import NoRoom
from zerokl.server.exchange import Exchange
from zerokl.server.fields import message
from zerokl.server.flights import submit
from zerokl.server.job import Job, Prompt
from zerokl.server.service import Service, refused
from zerokl.wire.client import EngineClient
from zerokl.wire.messages import Sampling, Stopping

PROBE_S = 20.0
FIRST = 1_000_000
"""The probe's priority: a long queue is no illness."""


async def health(service: Service, exchange: Exchange) -> None:
    _ = service.engine.client
    await exchange.answer(200)


async def health_generate(service: Service, exchange: Exchange) -> None:
    hello = service.engine.hello
    start = hello.bos_id if hello.bos_id is not None else 0
    probe = Job(
        Prompt([start]),
        sampling=Sampling(temperature=0.0),
        stopping=Stopping(ignore_eos=True),
        max_new_tokens=1,
        priority=FIRST,
        use_cache=False,
    )
    try:
        async with asyncio.timeout(PROBE_S):
            await _probed(service.engine.client, probe)
    except TimeoutError:
        raise NoRoom(message("engine_down"), code="engine_down", status=503) from None
    await exchange.answer(200)


async def _probed(client: EngineClient, probe: Job) -> None:
    """Past the frontend's own admission: a full queue is for clients. Raises 503 if the engine refuses or fails."""
    stream = submit(client, probe)
    try:
        async for record in stream:
            if refusal := refused(record.done):
                raise NoRoom(str(refusal), code=refusal.code or "engine_down", status=503)
    finally:
        if not stream.finished:
            stream.discard()
