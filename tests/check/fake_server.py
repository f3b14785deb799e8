"""The fake engine behind HTTP: an ASGI app with zerokl's routes, and a transport that streams without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import numpy as np
import orjson

from tests.check.defects import TAPS, WINDOW
from tests.check.fake_engine import VOCAB, FakeEngine, FakeRequest, mix


class FakeServer:
    """`trouble` decides per request path and count what goes wrong on the way: see TROUBLES in test_could_not_run."""

    def __init__(self, engine: FakeEngine, trouble: Callable[[str, int], str] = lambda path, count: "") -> None:
        self.engine = engine
        self.trouble = trouble
        self.count = 0
        self.num_samples = 0
        self.ranked: dict[int, tuple[np.ndarray, list[int]]] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        path = scope["path"]
        self.count += 1
        trouble = self.trouble(path, self.count)
        if trouble == "dead":
            raise httpx.ConnectError("connection refused")
        if trouble in ("429", "500"):
            await reply(send, {"error": {"message": f"told to answer {trouble}"}}, int(trouble))
        elif trouble == "html":
            await reply_bytes(send, b"<html>gateway</html>")
        elif path == "/generate":
            await self._generate(orjson.loads(body), send, trouble)
        elif path == "/v1/completions":
            await reply(send, await self._completions(orjson.loads(body)))
        elif path == "/flush_cache" and b"tier=device" in scope.get("query_string", b""):
            self.engine.flush_first_tier()
            await reply_bytes(send, b"Cache flushed.\n")
        elif path == "/flush_cache":
            done = self.engine.flush()
            await reply_bytes(send, b"Cache flushed.\n", 200 if done else 400)
        else:
            await reply(send, self._about(path, body))

    def _about(self, path: str, body: bytes) -> Any:
        engine = self.engine
        if path == "/server_info":
            return {
                "version": "0-fake",
                "fingerprint": "f",
                "page_size": engine.page,
                "chunked_prefill_size": engine.chunk,
                "attention_chunk": 64,
                "context_length": 1024,
                "vocab_size": VOCAB,
                "max_total_num_tokens": engine.pool,
                "max_running_requests": 64,
                "bytes_per_sliding_token": {str(WINDOW): 1},
                "convolution_width": TAPS,
                "enable_hierarchical_cache": engine.second_tier is not None,
                "internal_states": [self._counts()],
            }
        if path == "/model_info":
            return {"model_path": "hash"}
        if path == "/detokenize":
            return {"text": [f"<{token}>" for (token,) in orjson.loads(body)["tokens"]]}
        if path == "/tokenize":
            return {"tokens": [ord(letter) % 128 for letter in orjson.loads(body)["prompt"]]}
        return {}

    def _counts(self) -> dict[str, Any]:
        counters = self.engine.counters
        widths = {str(width): steps for width, steps in self.engine.widths.items()}
        cache = {"evicted": counters["evicted"], "host": [{"loaded": counters["loaded"]}]}
        return {**counters, "decode_widths": widths, "cache": cache}

    # /generate

    async def _generate(self, body: Any, send: Any, trouble: str) -> None:
        single = not isinstance(body["input_ids"][0], list)
        prompts = [body["input_ids"]] if single else body["input_ids"]
        specs = [_spec(body, index) for index in range(len(prompts))]
        requests = [
            self._request(prompt, spec, sample)
            for prompt, spec in zip(prompts, specs, strict=True)
            for sample in range(spec["n"])
        ]
        for request in requests:
            self.engine.submit(request)
        shown = [spec for spec in specs for _ in range(spec["n"])]
        if body.get("stream"):
            await self._stream(requests, shown, send, indexed=len(requests) > 1)
            return
        await asyncio.gather(*(self.engine.finished(request) for request in requests))
        items = [self._item(request, spec, trouble) for request, spec in zip(requests, shown, strict=True)]
        content = orjson.dumps(items[0] if single and len(items) == 1 else items)
        await reply_bytes(send, content.replace(b'"nan"', b"NaN"))

    def _request(self, prompt: list[int], spec: dict[str, Any], sample: int) -> FakeRequest:
        stream = sample
        if self.engine.defect == "stream_by_count" and spec["n"] > 1:
            stream, self.num_samples = self.num_samples, self.num_samples + 1
            self.engine.spoiled.add(("stream", stream))
        seed = 42 if self.engine.defect == "seed_of_samples" and spec["n"] > 1 else spec["seed"]
        if seed is None:
            seed = 3
            for token in prompt:
                seed = mix(seed, token)
        return FakeRequest(
            list(prompt),
            spec["new_tokens"],
            score_from=spec["start"] if spec["logprob"] else -1,
            temperature=spec["temperature"],
            seed=seed,
            seeded=spec["seed"] is not None,
            stream=stream,
            stop=spec["stop"],
            top=spec["top"],
        )

    def _item(self, request: FakeRequest, spec: dict[str, Any], trouble: str = "", dropped: int = -1) -> dict[str, Any]:
        output = list(request.output)
        entries = [[self._number(row[token]), token, None] for token, row in zip(output, request.rows, strict=True)]
        tops = [self._top(row, spec["top"]) for row in request.rows]
        if 0 <= dropped < len(output):
            self.engine.spoiled.add(("frame", output[dropped]))
            for column in (output, entries, tops):
                del column[dropped]
        meta = {
            "id": "x",
            "finish_reason": _finish(request),
            "prompt_tokens": len(request.prompt),
            "completion_tokens": len(request.output),
            "cached_tokens": request.cached,
        }
        if trouble == "truncated":
            output, entries, tops = output[:-1], entries[:-1], tops[:-1]
        if spec["logprob"]:
            meta["output_token_logprobs"] = entries
            meta["input_token_logprobs"] = []
            if spec["start"] >= 0:
                first = [None, request.prompt[spec["start"]], None]
                scored = [[self._number(row[token]), token, None] for token, row in request.scores]
                meta["input_token_logprobs"] = [first, *scored]
            if spec["top"]:
                meta["output_top_logprobs"] = tops
                rows = [None, *(self._top(row, spec["top"]) for _, row in request.scores)]
                meta["input_top_logprobs"] = rows if spec["start"] >= 0 else []
            if trouble == "nan" and entries:
                entries[0][0] = "nan"
            if trouble == "null" and entries:
                entries[-1][0] = None
        return {"text": "", "output_ids": output, "meta_info": meta}

    async def _stream(
        self, requests: list[FakeRequest], specs: list[dict[str, Any]], send: Any, *, indexed: bool
    ) -> None:
        await start(send, 200, b"text/event-stream")
        try:
            await self._frames(requests, specs, send, indexed=indexed)
        except asyncio.CancelledError:  # the client has hung up
            for request in requests:
                self.engine.abort(request)
            raise

    async def _frames(
        self, requests: list[FakeRequest], specs: list[dict[str, Any]], send: Any, *, indexed: bool
    ) -> None:
        dropped = 2 if self.engine.defect == "stream_drops" else -1
        sent = [0] * len(requests)
        while any(not one.done or count < len(one.output) for count, one in zip(sent, requests, strict=True)):
            for index, (request, spec) in enumerate(zip(requests, specs, strict=True)):
                if len(request.output) > sent[index]:
                    sent[index] = len(request.output)
                    item = self._item(request, spec, dropped=dropped)
                    frame = orjson.dumps({**item, "index": index} if indexed else item)
                    await send({"type": "http.response.body", "body": b"data: " + frame + b"\n\n", "more_body": True})
            await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})

    # /v1/completions

    async def _completions(self, body: Any) -> Any:
        prompt, top = body["prompt"], body["logprobs"]
        request = FakeRequest(list(prompt), body["max_tokens"], score_from=0, temperature=body["temperature"])
        self.engine.submit(request)
        await self.engine.finished(request)
        rows = [row for _, row in request.scores] + request.rows
        tokens = prompt + request.output
        logprobs = {
            "tokens": [f"token_id:{token}" for token in tokens],
            "token_logprobs": [None, *(self._echoed(row[token]) for token, row in zip(tokens[1:], rows, strict=True))],
            "top_logprobs": [
                None,
                *(
                    {f"token_id:{i}": self._echoed(row[i]) for i in np.argsort(-row, kind="stable")[:top]}
                    for row in rows
                ),
            ],
        }
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(request.output)}
        usage["prompt_tokens_details"] = {"cached_tokens": request.cached}
        return {"choices": [{"index": 0, "logprobs": logprobs, "finish_reason": "length"}], "usage": usage}

    def _echoed(self, value: np.float32) -> float:
        if self.engine.defect == "echo_rounds":
            self.engine.spoiled.add(("echo", float(value)))
            return float(np.float16(value))
        return self._number(value)

    def _number(self, value: np.float32) -> float:
        if self.engine.defect == "six_digits":
            self.engine.spoiled.add(("number", float(value)))
            return float(f"{value:.6g}")
        return float(value)

    def _top(self, row: np.ndarray, count: int) -> list[list[Any]]:
        return [[self._number(row[token]), token, None] for token in self._ranked(row)[:count]]

    def _ranked(self, row: np.ndarray) -> list[int]:
        """The ids, likeliest first. Rows are shared: each is sorted once, and kept so that its id stays its own."""
        if id(row) not in self.ranked:
            self.ranked[id(row)] = (row, np.argsort(-row, kind="stable")[:8].tolist())
        return self.ranked[id(row)][1]


def _finish(request: FakeRequest) -> Any:
    if not request.done:
        return None
    return {"type": "stop", "matched": request.stop} if request.stopped else {"type": "length"}


def _spec(body: Any, index: int) -> dict[str, Any]:
    def of(value: Any) -> Any:
        return value[index] if isinstance(value, list) else value

    params = of(body["sampling_params"])
    return {
        "new_tokens": params["max_new_tokens"],
        "temperature": params["temperature"],
        "seed": params.get("sampling_seed"),
        "n": params.get("n", 1),
        "stop": next(iter(params.get("stop_token_ids", ())), None),
        "logprob": of(body.get("return_logprob", False)),
        "start": of(body.get("logprob_start_len", -1)),
        "top": of(body.get("top_logprobs_num", 0)),
    }


async def start(send: Any, status: int, content_type: bytes = b"application/json") -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", content_type)]})


async def reply(send: Any, body: Any, status: int = 200) -> None:
    await reply_bytes(send, orjson.dumps(body), status)


async def reply_bytes(send: Any, body: bytes, status: int = 200) -> None:
    await start(send, status)
    await send({"type": "http.response.body", "body": body})


class InProcess(httpx.AsyncBaseTransport):
    """Calls an ASGI app and hands each body part on as it comes (httpx's own waits for the last one)."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        content = await request.aread()
        parts: asyncio.Queue[Any] = asyncio.Queue()

        async def receive() -> Any:
            return {"type": "http.request", "body": content, "more_body": False}

        url = request.url
        scope = {"type": "http", "path": url.path, "query_string": url.query, "method": request.method}

        def ended(task: asyncio.Future[None]) -> None:
            """An error goes to the client, even one of the fake itself: nobody may wait for ever."""
            if not task.cancelled() and task.exception() is not None:
                parts.put_nowait(task.exception())

        task = asyncio.ensure_future(self._app(scope, receive, parts.put))
        task.add_done_callback(ended)
        head = await parts.get()
        if isinstance(head, Exception):
            raise head
        return httpx.Response(head["status"], headers=head["headers"], stream=Body(parts, task))


class Body(httpx.AsyncByteStream):
    def __init__(self, parts: asyncio.Queue[Any], task: asyncio.Future[None]) -> None:
        self._parts, self._task, self._whole = parts, task, False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            part = await self._parts.get()
            if isinstance(part, Exception):
                raise part
            self._whole = not part.get("more_body")
            yield part["body"]
            if self._whole:
                return

    async def aclose(self) -> None:
        """Hangs up if the answer isn't whole."""
        if not self._whole:
            self._task.cancel()
        await asyncio.wait({self._task})
