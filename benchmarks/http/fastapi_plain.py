"""FastAPI with pydantic models doing less than we do: six options, no ids, no keys, no figures, no aborts."""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import uvicorn
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

from zerokl.tokenizer import Tokenizer
from zerokl.wire.client import EngineClient
from zerokl.wire.meeting import ENGINE_SOCKET
from zerokl.wire.messages import Sampling, Stopping

folder, port = Path(sys.argv[1]), int(sys.argv[2])


class SamplingParams(BaseModel):
    max_new_tokens: int = 128
    temperature: float = Field(1.0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = -1
    ignore_eos: bool = False
    sampling_seed: int | None = None


class Generate(BaseModel):
    text: str
    sampling_params: SamplingParams = SamplingParams()
    stream: bool = False


class Meta(BaseModel):
    id: str
    finish_reason: dict[str, Any] | None
    prompt_tokens: int
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


async def answers(request: Generate) -> AsyncIterator[Answer]:
    """One per record, each with everything so far."""
    began = time.perf_counter()
    params = request.sampling_params
    stream = app.state.engine.submit(
        app.state.tokenizer.encode(request.text),
        sampling=Sampling(params.temperature, params.top_p, params.top_k, seed=params.sampling_seed),
        stopping=Stopping(ignore_eos=params.ignore_eos),
        max_new_tokens=params.max_new_tokens,
        stream_interval=1 if request.stream else 0,
    )
    name, text, ids, first = uuid.uuid4().hex, "", list[int](), None
    async for record in stream:
        first = record.first or first
        text += record.text
        ids += record.tokens
        done = record.done
        meta = Meta(
            id=name,
            finish_reason={"type": done.kind} if done else None,
            prompt_tokens=first.prompt_tokens,
            completion_tokens=len(ids),
            cached_tokens=first.cached_tokens,
            e2e_latency=time.perf_counter() - began if done else None,
        )
        yield Answer(text=text, output_ids=list(ids), meta_info=meta)


@app.post("/generate", response_model=Answer)
async def generate(request: Generate) -> Any:
    if request.stream:
        return StreamingResponse(frames(request), media_type="text/event-stream")
    return [answer async for answer in answers(request)][-1]


async def frames(request: Generate) -> AsyncIterator[bytes]:
    async for answer in answers(request):
        yield b"data: " + orjson.dumps(answer.model_dump()) + b"\n\n"
    yield b"data: [DONE]\n\n"


uvicorn.run(app, port=port, loop="uvloop", http="httptools", log_level="warning", access_log=False)
