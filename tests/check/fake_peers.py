"""The fake engine behind other servers' wire formats, as far as the adapters use them."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import numpy as np
import orjson

from tests.check.fake_engine import FakeEngine, FakeRequest
from tests.check.fake_server import FakeServer, reply, start


class Peer:
    """One route that generates, plus what the server says about itself."""

    about: ClassVar[dict[str, Any]] = {}
    ends_with_done = True

    def __init__(self, engine: FakeEngine) -> None:
        self.engine = engine

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        path = scope["path"]
        body = orjson.loads(message["body"]) if message.get("body") else {}
        if path in self.about:
            await reply(send, self.about[path])
        elif path == "/tokenize":
            text = body.get("prompt", body.get("content"))
            await reply(send, {"tokens": [ord(letter) % 128 for letter in text]})
        elif path in ("/completion", "/v1/completions", "/v1/chat/completions"):
            await self._answer(path, body, send)
        else:
            await reply(send, {"error": {"message": f"no route {path}"}}, 404)

    async def _answer(self, path: str, body: Any, send: Any) -> None:
        requests = [self.request(body) for _ in range(body.get("n", 1))]
        if requests[0] is None:
            await reply(send, {"error": {"message": "not taken"}}, 400)
            return
        for stream, request in enumerate(requests):
            request.stream = stream
            self.engine.submit(request)
        if body.get("stream"):
            await self._stream(body, requests, send)
            return
        await asyncio.gather(*(self.engine.finished(request) for request in requests))
        await reply(send, self.joined([self.whole(body, request) for request in requests]))

    async def _stream(self, body: Any, requests: list[FakeRequest], send: Any) -> None:
        await start(send, 200, b"text/event-stream")
        sent = [0] * len(requests)
        while any(not one.done or count < len(one.output) for count, one in zip(sent, requests, strict=True)):
            for index, request in enumerate(requests):
                if len(request.output) > sent[index]:
                    await frame(send, self.joined([self.frame(body, request, sent[index])], index))
                    sent[index] += 1
            await asyncio.sleep(0)
        await self._end(body, requests, send)

    async def _end(self, body: Any, requests: list[FakeRequest], send: Any) -> None:
        whole = self.whole(body, requests[0])
        if self.ends_with_done:
            for index, request in enumerate(requests):
                await frame(send, {"choices": [{"index": index, "finish_reason": finish(request)}]})
            await frame(send, {"choices": [], "usage": whole.get("usage")})
            await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})
        else:
            await frame(send, {**whole, "tokens": [], "stop": True}, more=False)

    def joined(self, replies: list[Any], first: int = 0) -> Any:
        """Several samples' replies as one, their choices numbered."""
        whole = dict(replies[0])
        if "choices" in whole:
            choices = [choice for one in replies for choice in one["choices"]]
            whole["choices"] = [{**choice, "index": first + index} for index, choice in enumerate(choices)]
        return whole

    def request(self, body: Any) -> FakeRequest | None:
        raise NotImplementedError

    def whole(self, body: Any, request: FakeRequest) -> Any:
        raise NotImplementedError

    def frame(self, body: Any, request: FakeRequest, index: int) -> Any:
        raise NotImplementedError


def finish(request: FakeRequest) -> str:
    return "stop" if request.stopped else "length"


async def frame(send: Any, content: Any, *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": b"data: " + orjson.dumps(content) + b"\n\n", "more_body": more})


def ranked(row: np.ndarray, count: int) -> list[int]:
    return [int(token) for token in np.argsort(-row, kind="stable")[:count]]


class FakeVLLM(Peer):
    about: ClassVar[dict[str, Any]] = {
        "/v1/models": {"data": [{"id": "hash", "owned_by": "vllm", "max_model_len": 1024}]},
        "/version": {"version": "0-fake"},
    }

    def request(self, body: Any) -> FakeRequest:
        request = FakeRequest(
            body["prompt"],
            body["max_tokens"],
            score_from=0 if body.get("prompt_logprobs") else -1,
            temperature=body.get("temperature", 1.0),
            seed=body.get("seed", 1),
        )
        request.salt = body.get("cache_salt", "")
        request.stop = next(iter(body.get("stop_token_ids", ())), None)
        return request

    def whole(self, body: Any, request: FakeRequest) -> Any:
        choice = {"index": 0, "token_ids": request.output, "finish_reason": finish(request), "logprobs": None}
        if body.get("logprobs"):
            choice["logprobs"] = self.logprobs(body, request, 0, len(request.output))
        if body.get("prompt_logprobs"):
            scores = [self.entry(token, row, body["prompt_logprobs"]) for token, row in request.scores]
            choice["prompt_logprobs"] = [None, *scores]
        return {"choices": [choice], "usage": self.usage(request)}

    def frame(self, body: Any, request: FakeRequest, index: int) -> Any:
        asked = body.get("logprobs")
        logprobs = self.logprobs(body, request, index, index + 1) if asked else None
        return {"choices": [{"index": 0, "token_ids": [request.output[index]], "logprobs": logprobs}]}

    def logprobs(self, body: Any, request: FakeRequest, first: int, last: int) -> Any:
        """The chosen token comes first in each map, whatever its rank."""
        tokens, rows = request.output[first:last], request.rows[first:last]
        return {
            "tokens": [f"token_id:{token}" for token in tokens],
            "token_logprobs": [float(row[token]) for token, row in zip(tokens, rows, strict=True)],
            "top_logprobs": [
                {f"token_id:{one}": float(row[one]) for one in [token, *ranked(row, body["logprobs"])]}
                for token, row in zip(tokens, rows, strict=True)
            ],
        }

    def entry(self, token: int, row: np.ndarray, count: int) -> Any:
        return {str(one): {"logprob": float(row[one]), "rank": 1} for one in [token, *ranked(row, count)]}

    def usage(self, request: FakeRequest) -> Any:
        details = {"cached_tokens": request.cached}
        return {"prompt_tokens": len(request.prompt), "prompt_tokens_details": details}


class FakeLlamaCpp(Peer):
    about: ClassVar[dict[str, Any]] = {
        "/props": {
            "default_generation_settings": {"n_ctx": 1024},
            "total_slots": 4,
            "model_path": "/models/hash.gguf",
            "build_info": "b0-fake",
        }
    }
    ends_with_done = False

    def request(self, body: Any) -> FakeRequest:
        request = FakeRequest(
            body["prompt"], body["n_predict"], temperature=body["temperature"], seed=body.get("seed", 1)
        )
        request.use_cache = body["cache_prompt"]
        return request

    def whole(self, body: Any, request: FakeRequest) -> Any:
        entries = [self.entry(body, request, index) for index in range(len(request.output))]
        return {
            "tokens": request.output,
            "completion_probabilities": entries if body["n_probs"] else [],
            "stop": True,
            "stop_type": "limit",
            "timings": {"cache_n": request.cached, "prompt_n": len(request.prompt) - request.cached},
        }

    def frame(self, body: Any, request: FakeRequest, index: int) -> Any:
        entry = self.entry(body, request, index)
        return {"tokens": [request.output[index]], "completion_probabilities": [entry], "stop": False}

    def entry(self, body: Any, request: FakeRequest, index: int) -> Any:
        token, row = request.output[index], request.rows[index]
        top = [{"id": one, "logprob": float(row[one])} for one in ranked(row, body["n_probs"])]
        return {"id": token, "logprob": float(row[token]), "top_logprobs": top}


class FakeOpenAI(FakeVLLM):
    """Text prompts only, tokens as text, no cache count, no echo; ids 60 and 61 share one text."""

    about: ClassVar[dict[str, Any]] = {"/v1/models": {"data": [{"id": "hash", "owned_by": "somebody"}]}}

    def request(self, body: Any) -> FakeRequest | None:
        if not isinstance(body["prompt"], str):
            return None
        return super().request({**body, "prompt": [ord(letter) for letter in body["prompt"]]})

    def logprobs(self, body: Any, request: FakeRequest, first: int, last: int) -> Any:
        columns = super().logprobs({**body, "logprobs": body.get("logprobs") or 0}, request, first, last)
        text = {f"token_id:{token}": f"t{min(token, 60) if token == 61 else token}" for token in range(128)}
        tops = [{text[name]: value for name, value in top.items()} for top in columns["top_logprobs"]]
        return {**columns, "tokens": [text[name] for name in columns["tokens"]], "top_logprobs": tops}

    def usage(self, request: FakeRequest) -> Any:
        return {"prompt_tokens": max(1, len(request.prompt))}


class FakeChat(Peer):
    about: ClassVar[dict[str, Any]] = {"/v1/models": {"data": [{"id": "hash", "owned_by": "somebody"}]}}

    def request(self, body: Any) -> FakeRequest | None:
        if "messages" not in body:
            return None
        ids = [ord(letter) for letter in body["messages"][0]["content"]]
        return FakeRequest(ids, body["max_tokens"], temperature=body["temperature"], seed=body.get("seed", 1))

    def whole(self, body: Any, request: FakeRequest) -> Any:
        content = [self.entry(body, request, index) for index in range(len(request.output))]
        return {"choices": [{"index": 0, "logprobs": {"content": content}}]}

    def frame(self, body: Any, request: FakeRequest, index: int) -> Any:
        return {"choices": [{"index": 0, "logprobs": {"content": [self.entry(body, request, index)]}}]}

    def entry(self, body: Any, request: FakeRequest, index: int) -> Any:
        token, row = request.output[index], request.rows[index]
        tops = [{"token": f"t{one}", "logprob": float(row[one])} for one in ranked(row, body["top_logprobs"])]
        return {"token": f"t{token}", "logprob": float(row[token]), "top_logprobs": tops}


class FakeSGLang(FakeServer):
    """The native route without zerokl's fingerprint and counters, and with an update of weights."""

    async def _generate(self, body: Any, send: Any, trouble: str) -> None:
        """A prompt that isn't in a list takes nothing else in one, as in the real server, which answers 500."""
        if not isinstance(body["input_ids"][0], list) and any(
            isinstance(body[name], list) for name in ("sampling_params", "logprob_start_len", "top_logprobs_num")
        ):
            await reply(send, {"error": {"message": "'list' object has no attribute 'get'"}}, 500)
            return
        await super()._generate(body, send, trouble)

    def _item(self, request: FakeRequest, spec: Any, trouble: str = "", dropped: int = -1) -> Any:
        """Where no token was asked for, one logprob comes all the same."""
        item = super()._item(request, spec, trouble, dropped)
        if spec["logprob"] and not spec["new_tokens"]:
            item["meta_info"]["output_token_logprobs"] = [[0.0, 0, None]]
            if spec["top"]:
                item["meta_info"]["output_top_logprobs"] = [[[0.0, token, None] for token in range(spec["top"])]]
        return item

    def _about(self, path: str, body: bytes) -> Any:
        if path == "/update_weights_from_disk":
            self.engine.load(0 if orjson.loads(body)["model_path"] == "hash" else 1)
            return {"success": True, "message": "loaded"}
        info = super()._about(path, body)
        if path == "/server_info":
            kept = ("version", "page_size", "chunked_prefill_size", "context_length", "max_running_requests")
            return {name: info[name] for name in kept} | {"model_path": "hash", "enable_deterministic_inference": True}
        return info
