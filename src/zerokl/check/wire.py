"""HTTP as the checker needs it: JSON in and out, streams by frame, patience with 429, plain words for the rest."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
import orjson

from zerokl.check.connections import Connections
from zerokl.check.outcome import BudgetSpent, CouldNotRun, ServerGone

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 16.0
"""After a 429; the pause doubles each time, and retry-after can make it longer."""

KEEPALIVE_S = 2.0
"""Shorter than any server's patience, so that no connection is used which the server is about to close."""

Json = Any
"""Whatever orjson returns; adapters check the shape."""


@dataclass(slots=True)
class Budget:
    """How much may still be spent. Checked before each request, so a run ends within one answer of its limit."""

    seconds: float | None = None
    requests: int | None = None
    started: float = field(default_factory=time.monotonic)
    sent: int = 0

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.started

    @property
    def seconds_left(self) -> float:
        return float("inf") if self.seconds is None else self.seconds - self.elapsed

    def spend(self) -> None:
        if self.seconds_left <= 0:
            raise BudgetSpent(f"the budget of {self.seconds:.0f} s is spent")
        if self.requests is not None and self.sent >= self.requests:
            raise BudgetSpent(f"the budget of {self.requests} requests is spent")
        self.sent += 1


class Wire:
    """One server. Raises CouldNotRun with the reason, ServerGone when nothing answers at all."""

    def __init__(
        self,
        url: str,
        *,
        api_key: str = "",
        budget: Budget | None = None,
        concurrency: int = 64,
        timeout_s: float = 300.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self.budget = budget or Budget()
        self.retries = 0
        headers = {"content-type": "application/json"}
        if api_key:
            headers["authorization"] = f"Bearer {api_key}"
        timeout = httpx.Timeout(timeout_s, connect=10.0, pool=None)
        transport = transport or Connections(concurrency, KEEPALIVE_S)
        self._client = httpx.AsyncClient(
            base_url=self.url, headers=headers, timeout=timeout, transport=transport, trust_env=False
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def get(self, path: str, **query: object) -> Json:
        return _parsed(await self._send("GET", path, None, query), path)

    async def post(self, path: str, body: Json = None, **query: object) -> Json:
        return _parsed(await self._send("POST", path, body, query), path)

    async def post_text(self, path: str, body: Json = None, **query: object) -> str:
        return (await self._send("POST", path, body, query)).text

    async def get_or_none(self, path: str) -> Json | None:
        """The JSON at `path`, or None if the server has no such route."""
        try:
            response = await self._request("GET", path, None, {})
        except CouldNotRun as error:
            if isinstance(error, ServerGone):
                raise
            return None
        if response.status_code != httpx.codes.OK:
            return None
        try:
            return orjson.loads(response.content)
        except orjson.JSONDecodeError:
            return None

    async def frames(self, path: str, body: Json, *, ends_with_done: bool = True) -> AsyncIterator[Json]:
        """The JSON of each `data:` line up to [DONE]; a stream that should end with it and doesn't is an error."""
        self.budget.spend()
        started = False
        while True:
            try:
                async with self._client.stream("POST", path, content=orjson.dumps(body)) as response:
                    started = True
                    if response.status_code != httpx.codes.OK:
                        await response.aread()
                        raise CouldNotRun(_refusal(response, path))
                    async for payload in _payloads(response):
                        if payload == "[DONE]":
                            return
                        yield _frame(payload, path)
                break
            except httpx.RemoteProtocolError as error:
                if started:
                    raise await self._gone(error, path) from error
                started = True  # closed while idle: once more, on a new connection
                self.retries += 1
            except httpx.TransportError as error:
                raise await self._gone(error, path) from error
        if ends_with_done:
            raise CouldNotRun(f"{path}: the stream ended without [DONE]")

    async def _send(self, method: str, path: str, body: Json, query: Mapping[str, object]) -> httpx.Response:
        pause = FIRST_PAUSE_S
        while True:
            self.budget.spend()
            response = await self._request(method, path, body, query)
            if response.status_code == httpx.codes.OK:
                return response
            if (
                response.status_code != httpx.codes.TOO_MANY_REQUESTS
                or pause > LONGEST_PAUSE_S
                or self.budget.seconds_left < pause
            ):
                raise CouldNotRun(_refusal(response, path))
            self.retries += 1
            await asyncio.sleep(max(pause, _retry_after(response)))
            pause *= 2

    async def _request(self, method: str, path: str, body: Json, query: Mapping[str, object]) -> httpx.Response:
        content = None if body is None else orjson.dumps(body)
        params = {name: str(value) for name, value in query.items()}
        try:
            return await self._client.request(method, path, content=content, params=params)
        except httpx.RemoteProtocolError:  # closed while idle, as some servers do after a number of requests
            self.retries += 1
        except httpx.TransportError as error:
            raise await self._gone(error, path) from error
        try:
            return await self._client.request(method, path, content=content, params=params)
        except httpx.TransportError as error:
            raise await self._gone(error, path) from error

    async def _gone(self, error: httpx.TransportError, path: str) -> CouldNotRun:
        """Is the server dead, or was it only this request?"""
        name = type(error).__name__
        if isinstance(error, httpx.TimeoutException) and not isinstance(error, httpx.ConnectTimeout):
            return CouldNotRun(f"{path}: no answer in time ({name})")
        try:
            await self._client.get("/health", timeout=5.0)
        except httpx.TransportError:
            return ServerGone(f"{self.url} does not answer: {error or name}")
        return CouldNotRun(f"{path}: the connection broke ({name}: {error})")


async def _payloads(response: httpx.Response) -> AsyncIterator[str]:
    async for line in response.aiter_lines():
        if line.startswith("data:"):
            yield line[5:].strip()


def _parsed(response: httpx.Response, path: str) -> Json:
    try:
        return orjson.loads(response.content)
    except orjson.JSONDecodeError as error:
        raise CouldNotRun(f"{path}: the answer is not valid JSON ({_snippet(response.text)})") from error


def _frame(payload: str, path: str) -> Json:
    try:
        frame = orjson.loads(payload)
    except orjson.JSONDecodeError as error:
        raise CouldNotRun(f"{path}: a frame is not valid JSON ({_snippet(payload)})") from error
    if isinstance(frame, dict) and frame.get("error"):
        raise CouldNotRun(f"{path}: the stream failed: {_message(frame)}")
    return frame


def _refusal(response: httpx.Response, path: str) -> str:
    try:
        message = _message(json.loads(response.text))
    except ValueError:
        message = _snippet(response.text)
    return f"{path} answered {response.status_code}: {message}"


def _message(body: Json) -> str:
    error = body.get("error", body) if isinstance(body, dict) else body
    return str(error.get("message", error)) if isinstance(error, dict) else _snippet(str(error))


def _snippet(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:117]}..."


def _retry_after(response: httpx.Response) -> float:
    try:
        return min(30.0, float(response.headers.get("retry-after", "0")))
    except ValueError:
        return 0.0
