"""What the frontend is compared with: FastAPI with pydantic models doing the same work on the same engine.

The same options with the same ranges, request ids, keys, admission, figures, seeds, and an abort when the client
leaves. The wire, the tokenizer and the figures are ours, so they cost both the same.
"""

from __future__ import annotations

import asyncio
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import orjson
import uvicorn
from fastapi import Depends, FastAPI, Header, HTTPException, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from zerokl.server.meter import Meter
from zerokl.tokenizer import Tokenizer
from zerokl.wire.client import EngineClient
from zerokl.wire.meeting import ENGINE_SOCKET
from zerokl.wire.messages import LogprobOptions, Sampling, Stopping

folder, port = Path(sys.argv[1]), int(sys.argv[2])
PLACES = 4096
KEYS: tuple[str, ...] = ()
meter = Meter()
in_flight = 0

Share = Annotated[float, Field(ge=0, le=1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]


class SamplingParams(BaseModel):
    model_config = ConfigDict(extra="forbid")
    max_new_tokens: int = Field(128, ge=0)
    min_new_tokens: int = Field(0, ge=0)
    temperature: float = Field(1.0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(-1, ge=-1)
    min_p: Share = 0.0
    frequency_penalty: Penalty = 0.0
    presence_penalty: Penalty = 0.0
    repetition_penalty: float = Field(1.0, gt=0, le=2)
    stop: str | list[str] = Field(default_factory=list)
    stop_token_ids: list[int] = Field(default_factory=list)
    stop_regex: str | list[str] = Field(default_factory=list)
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    no_stop_trim: bool = False
    stream_interval: int = Field(1, ge=1)
    n: int = Field(1, ge=1, le=128)
    logit_bias: dict[str, float] = Field(default_factory=dict)
    sampling_seed: int | None = None
    json_schema: str | dict[str, Any] | None = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: str | dict[str, Any] | None = None


class Generate(BaseModel):
    text: str | list[str] | None = None
    input_ids: list[int] | list[list[int]] | None = None
    sampling_params: SamplingParams | list[SamplingParams] = Field(default_factory=SamplingParams)
    return_logprob: bool | list[bool] = False
    logprob_start_len: int | list[int] = -1
    top_logprobs_num: int | list[int] = 0
    token_ids_logprob: list[int] | list[list[int]] | None = None
    return_text_in_logprobs: bool = False
    return_prompt_token_ids: bool = False
    stream: bool = False
    rid: str | list[str] | None = None
    cache_salt: str = ""
    priority: int = 0
    lora_path: None = None
    image_data: None = None


class FinishReason(BaseModel):
    type: Literal["stop", "length", "abort"]
    matched: int | str | None = None
    length: int | None = None


class Meta(BaseModel):
    id: str
    finish_reason: FinishReason | None
    prompt_tokens: int
    weight_version: str
    completion_tokens: int
    cached_tokens: int
    e2e_latency: float | None = None


class Answer(BaseModel):
    text: str
    output_ids: list[int]
    meta_info: Meta


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    app.state.engine = await EngineClient.connect(folder / ENGINE_SOCKET)
    app.state.tokenizer = Tokenizer.load(folder)
    yield


app = FastAPI(lifespan=lifespan)


class Named:
    """Middleware: the request's id and the fingerprint on every answer. Plain ASGI, FastAPI's own kind costs more."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return await self.inner(scope, receive, send)
        given = dict(scope["headers"]).get(b"x-request-id") or uuid.uuid4().hex.encode()
        status = 0

        async def named(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                fingerprint = app.state.engine.greeting.fingerprint.encode()
                message["headers"] += [(b"x-request-id", given), (b"x-zerokl-fingerprint", fingerprint)]
            await send(message)

        await self.inner(scope, receive, named)
        meter.answers.add(path=scope["path"], status=str(status))
        return None


app.add_middleware(Named)


def keyed(authorization: Annotated[str | None, Header()] = None) -> None:
    if KEYS and authorization not in KEYS:
        raise HTTPException(401, "no API key given")


async def answers(request: Generate, seeds: list[int]) -> AsyncIterator[Answer]:
    """One per record, each with everything so far."""
    global in_flight
    if in_flight >= PLACES:
        raise HTTPException(429, "the queue is full")
    if (request.text is None) == (request.input_ids is None):
        raise HTTPException(400, "give text or input_ids")
    began = time.perf_counter()
    params: Any = request.sampling_params
    prompt = request.input_ids or app.state.tokenizer.encode(request.text)
    trip = meter.begin(request.stream)
    in_flight += 1
    stream = app.state.engine.submit(
        prompt,
        sampling=Sampling(
            params.temperature,
            params.top_p,
            params.top_k,
            params.min_p,
            params.frequency_penalty,
            params.presence_penalty,
            params.repetition_penalty,
            seed=params.sampling_seed,
        ),
        stopping=Stopping(
            [params.stop] if isinstance(params.stop, str) else params.stop,
            params.stop_token_ids,
            [params.stop_regex] if isinstance(params.stop_regex, str) else params.stop_regex,
            params.ignore_eos,
            params.no_stop_trim,
        ),
        max_new_tokens=params.max_new_tokens,
        min_new_tokens=params.min_new_tokens,
        logprobs=LogprobOptions() if request.return_logprob else None,
        stream_interval=params.stream_interval if request.stream else 0,
        priority=request.priority,
        cache_salt=request.cache_salt,
    )
    name, text, ids, first = request.rid or uuid.uuid4().hex, "", list[int](), None
    try:
        async for record in stream:
            trip.take(record)
            if record.first is not None:
                first = record.first
                seeds.append(first.seed)
            text += record.text
            ids += record.tokens
            done = record.done
            length = len(ids) if done and done.kind == "length" else None
            meta = Meta(
                id=name,
                finish_reason=FinishReason(type=done.kind, matched=done.matched_id, length=length) if done else None,
                prompt_tokens=first.prompt_tokens,
                weight_version="default",
                completion_tokens=len(ids),
                cached_tokens=first.cached_tokens,
                e2e_latency=time.perf_counter() - began if done else None,
            )
            yield Answer(text=text, output_ids=list(ids), meta_info=meta)
    finally:
        in_flight -= 1
        trip.leave()
        if not stream.finished:
            stream.discard()


@app.post("/generate", response_model=Answer, dependencies=[Depends(keyed)])
async def generate(request: Generate, http: Request, response: Response) -> Any:
    seeds: list[int] = []
    if request.stream:
        frames = framed(request, seeds)
        first = await anext(frames)
        return StreamingResponse(
            rest(first, frames), media_type="text/event-stream", headers={"x-zerokl-seed": str(seeds[0])}
        )
    answer = await unless_gone(http, last(request, seeds))
    response.headers["x-zerokl-seed"] = str(seeds[0])
    return answer


async def last(request: Generate, seeds: list[int]) -> Answer:
    return [answer async for answer in answers(request, seeds)][-1]


async def unless_gone(http: Request, work: Awaitable[Answer]) -> Answer | None:
    """The work is cancelled when the client hangs up: a task for it and one that listens."""

    async def listen() -> None:
        while (await http.receive())["type"] != "http.disconnect":
            pass

    working, listening = asyncio.ensure_future(work), asyncio.create_task(listen())
    done, waiting = await asyncio.wait([working, listening], return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()
    return working.result() if working in done else None


async def framed(request: Generate, seeds: list[int]) -> AsyncIterator[bytes]:
    async for answer in answers(request, seeds):
        yield b"data: " + orjson.dumps(answer.model_dump()) + b"\n\n"
    yield b"data: [DONE]\n\n"


async def rest(first: bytes, frames: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for frame in frames:
        yield frame


uvicorn.run(app, port=port, loop="uvloop", http="httptools", log_level="warning", access_log=False, proxy_headers=False)
