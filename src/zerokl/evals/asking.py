"""Two small questions to any server: say, and score. By the native route where there is one, else by completions."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from zerokl.check.outcome import CouldNotRun
from zerokl.check.wire import Json, Wire


@dataclass(frozen=True, slots=True)
class Said:
    """One greedy answer. What the route doesn't tell is None."""

    text: str
    finish: str
    ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Server:
    """What a server says it is; stored with results, so that a file can't be continued on another server."""

    kind: str
    model: str = ""
    version: str = ""
    fingerprint: str = ""


class Asker(Protocol):
    """Raises CouldNotRun for whatever isn't an answer: a request error is never a wrong answer."""

    async def server(self) -> Server: ...

    async def say(self, prompt: str, max_new_tokens: int, stops: Sequence[str]) -> Said: ...

    async def score(self, prompt: str, continuation: str) -> list[float]:
        """Logprobs of the continuation's tokens after the prompt (of all but the first token where it is "")."""
        ...

    async def flush(self) -> None: ...


class NativeAsker:
    """/generate of zerokl and SGLang."""

    def __init__(self, wire: Wire, info: dict[str, Any]) -> None:
        self._wire = wire
        self._info = info

    async def server(self) -> Server:
        info = self._info
        kind = "zerokl" if "fingerprint" in info else "sglang"
        model = str(info.get("served_model_name") or info.get("model_path", ""))
        return Server(kind, model, str(info.get("version", "")), str(info.get("fingerprint", "")))

    async def say(self, prompt: str, max_new_tokens: int, stops: Sequence[str]) -> Said:
        sampling = {"temperature": 0, "max_new_tokens": max_new_tokens, "stop": list(stops)}
        reply = await self._wire.post(
            "/generate", {"text": prompt, "sampling_params": sampling, "return_logprob": True, "logprob_start_len": -1}
        )
        try:
            meta = reply["meta_info"]
            finish = meta["finish_reason"]
            kind = str(finish["type"]) if isinstance(finish, dict) else str(finish)
            rows = meta["output_token_logprobs"]
            ids = reply.get("output_ids") or [row[1] for row in rows]
            said = Said(
                str(reply["text"]),
                kind,
                tuple(map(int, ids)),
                tuple(float(row[0]) for row in rows),
                meta.get("cached_tokens"),
            )
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise CouldNotRun(f"/generate: not an answer: {type(error).__name__} {error}") from error
        if said.finish not in ("stop", "length"):
            raise CouldNotRun(f"/generate ended with {said.finish}: {finish}")
        return said

    async def score(self, prompt: str, continuation: str) -> list[float]:
        """Tokenised together; what the continuation changes in the prompt's last token counts as continuation."""
        whole = await self._ids(prompt + continuation)
        start = _common(await self._ids(prompt), whole) if continuation else 1
        if start >= len(whole) or start < 1:
            raise CouldNotRun("there is nothing to score, or nothing before it")
        body = {
            "input_ids": whole,
            "sampling_params": {"temperature": 0, "max_new_tokens": 0},
            "return_logprob": True,
            "logprob_start_len": start - 1,  # the first entry has no logprob
        }
        rows = (await self._wire.post("/generate", body))["meta_info"]["input_token_logprobs"][1:]
        if [row[1] for row in rows] != whole[start:]:
            raise CouldNotRun("/generate scored other tokens than were sent")
        return [float(row[0]) for row in rows]

    async def flush(self) -> None:
        await self._wire.post_text("/flush_cache", timeout=30)

    async def _ids(self, text: str) -> list[int]:
        return [int(token) for token in (await self._wire.post("/tokenize", {"prompt": text}))["tokens"]]


class CompletionsAsker:
    """/v1/completions of anybody. Without token ids, texts are compared; scores need a native route."""

    def __init__(self, wire: Wire, model: str) -> None:
        self._wire = wire
        self._model = model

    async def server(self) -> Server:
        return Server("completions", self._model)

    async def say(self, prompt: str, max_new_tokens: int, stops: Sequence[str]) -> Said:
        body = {
            "model": self._model,
            "prompt": prompt,
            "max_tokens": max_new_tokens,
            "temperature": 0,
            "stop": list(stops),
            "logprobs": 1,
        }
        reply = await self._wire.post("/v1/completions", body)
        try:
            choice = reply["choices"][0]
            rows = (choice.get("logprobs") or {}).get("token_logprobs")
            cached = ((reply.get("usage") or {}).get("prompt_tokens_details") or {}).get("cached_tokens")
            said = Said(
                str(choice["text"]),
                str(choice["finish_reason"]),
                logprobs=None if rows is None else tuple(map(float, rows)),
                cached_tokens=cached,
            )
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise CouldNotRun(f"/v1/completions: not an answer: {type(error).__name__} {error}") from error
        if said.finish not in ("stop", "length"):
            raise CouldNotRun(f"/v1/completions ended with {said.finish}")
        return said

    async def score(self, prompt: str, continuation: str) -> list[float]:
        raise CouldNotRun("scores need the native route (/generate)")

    async def flush(self) -> None:
        raise CouldNotRun("a cold run needs the native route (/flush_cache)")


async def find_asker(wire: Wire, route: str = "auto", model: str = "") -> Asker:
    """`route`: auto, native or completions; `model`: the name to send, or the first of /v1/models."""
    info: Json = None
    if route != "completions":
        info = await wire.get_or_none("/server_info") or await wire.get_or_none("/get_server_info")
    if isinstance(info, dict):
        return NativeAsker(wire, info)
    if route == "native":
        raise CouldNotRun(f"{wire.url} has no native route (/server_info)")
    if not model:
        models = await wire.get("/v1/models")
        if not models.get("data"):
            raise CouldNotRun(f"{wire.url} names no model; give --model")
        model = str(models["data"][0]["id"])
    return CompletionsAsker(wire, model)


def prompt_hash(prompt: str) -> str:
    return hashlib.sha256(prompt.encode()).hexdigest()[:16]


def _common(first: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens at the start are the same."""
    same = 0
    for one, two in zip(first, other, strict=False):
        if one != two:
            break
        same += 1
    return same
