"""A serving benchmark of any OpenAI-compatible server: streams of /v1/completions, timed where they arrive.

Time to first token, gaps between the pieces of a stream, time per output token and whole requests; tokens are counted
by the server (`usage`), or by pieces where it doesn't say.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import orjson

from zerokl.bench.load import Asked, Load, requests_of
from zerokl.check.connections import Connections
from zerokl.errors import CallerError

QUANTILES = (0.5, 0.9, 0.95, 0.99)


@dataclass(slots=True)
class Stream:
    """One answer as it came. Times in seconds after the start of the benchmark."""

    sent: float = 0.0
    pieces: list[float] = field(default_factory=list)
    """When each piece of text arrived; of a stream without text (ids that mean nothing), when it finished."""
    ended: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class Client:
    """Where and how to ask."""

    url: str
    model: str = ""
    api_key: str = ""
    concurrency: int = 64
    extra: dict[str, Any] = field(default_factory=dict)
    """More fields of each request's body."""
    timeout: float = 600.0


async def serve(load: Load, client: Client) -> tuple[float, list[Stream]]:
    """(seconds from the first request to the last end, streams). Raises CallerError if no server answers there."""
    headers = {"Authorization": f"Bearer {client.api_key}"} if client.api_key else {}
    connections = Connections(client.concurrency)
    async with httpx.AsyncClient(
        base_url=client.url, headers=headers, timeout=client.timeout, transport=connections, trust_env=False
    ) as http:
        model = client.model or await first_model(http)
        places = asyncio.Semaphore(client.concurrency)
        began = time.perf_counter()
        asking = [one(http, places, asked, model, client.extra, began) for asked in requests_of(load)]
        streams = await asyncio.gather(*asking)
        return time.perf_counter() - began, list(streams)


async def first_model(http: httpx.AsyncClient) -> str:
    try:
        answer = await http.get("/v1/models")
        return str(answer.raise_for_status().json()["data"][0]["id"])
    except (httpx.HTTPError, KeyError, IndexError, ValueError) as error:
        raise CallerError(f"{http.base_url}: no model at /v1/models: {error}") from error


async def one(
    http: httpx.AsyncClient, places: asyncio.Semaphore, asked: Asked, model: str, extra: dict[str, Any], began: float
) -> Stream:
    body = {
        "model": model,
        "prompt": asked.prompt,
        "max_tokens": asked.max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    } | extra
    await asyncio.sleep(max(0.0, began + asked.at - time.perf_counter()))
    stream = Stream()
    async with places:
        stream.sent = time.perf_counter() - began
        try:
            async with http.stream("POST", "/v1/completions", json=body) as answer:
                if answer.status_code != 200:
                    stream.error = f"{answer.status_code}: {(await answer.aread())[:200].decode(errors='replace')}"
                else:
                    async for line in answer.aiter_lines():
                        hear(stream, line, time.perf_counter() - began)
        except httpx.HTTPError as error:
            stream.error = f"{type(error).__name__}: {error}"
        stream.ended = time.perf_counter() - began
    if not stream.error and not stream.pieces:
        stream.error = "a stream without an end"
    stream.output_tokens = stream.output_tokens or len(stream.pieces)
    return stream


def hear(stream: Stream, line: str, now: float) -> None:
    """One line of a server-sent event."""
    if not line.startswith("data:") or line[5:].strip() == "[DONE]":
        return
    event = orjson.loads(line[5:])
    if event.get("error"):
        stream.error = str(event["error"])[:200]
    choices = event.get("choices") or []
    if any(choice.get("text") for choice in choices) or (choices and not stream.pieces and is_last(choices)):
        stream.pieces.append(now)
    if usage := event.get("usage"):
        stream.input_tokens, stream.output_tokens = usage["prompt_tokens"], usage["completion_tokens"]


def is_last(choices: Sequence[dict[str, Any]]) -> bool:
    return all(choice.get("finish_reason") for choice in choices)


def summary(seconds: float, streams: Sequence[Stream]) -> dict[str, Any]:
    """What is reported: counts, rates, and milliseconds at quantiles."""
    good = [stream for stream in streams if not stream.error]
    failed = [stream.error for stream in streams if stream.error]
    gaps = [b - a for stream in good for a, b in zip(stream.pieces, stream.pieces[1:], strict=False)]
    per_token = [
        (stream.pieces[-1] - stream.pieces[0]) / (stream.output_tokens - 1)
        for stream in good
        if stream.output_tokens > 1
    ]
    inputs, outputs = (sum(getattr(stream, name) for stream in good) for name in ("input_tokens", "output_tokens"))
    return {
        "requests": len(streams),
        "failed": len(failed),
        "first_failure": failed[0] if failed else None,
        "seconds": round(seconds, 3),
        "requests_per_second": round(len(good) / seconds, 3),
        "input_tokens": inputs,
        "output_tokens": outputs,
        "input_tokens_per_second": round(inputs / seconds, 1),
        "output_tokens_per_second": round(outputs / seconds, 1),
        "ms": {
            "time_to_first_token": milliseconds([stream.pieces[0] - stream.sent for stream in good]),
            "between_pieces": milliseconds(gaps),
            "time_per_output_token": milliseconds(per_token),
            "whole_request": milliseconds([stream.ended - stream.sent for stream in good]),
        },
    }


def milliseconds(seconds: Sequence[float]) -> dict[str, float]:
    """Mean and quantiles; nothing of nothing."""
    if not seconds:
        return {}
    ordered = sorted(seconds)
    found = {"mean": sum(ordered) / len(ordered)}
    found |= {f"p{round(q * 100)}": ordered[min(len(ordered) - 1, int(q * len(ordered)))] for q in QUANTILES}
    return {name: round(value * 1000, 2) for name, value in (found | {"max": ordered[-1]}).items()}
