"""vLLM, through /v1/completions with token ids. A fresh cache salt makes a request cold."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

from zerokl.check.answers import Answer, Ask, Row
from zerokl.check.outcome import CouldNotRun
from zerokl.check.targets.base import Can, Counters, Facts
from zerokl.check.targets.completions import ROUTE, completion_body, gather_stream, parse_completion
from zerokl.check.targets.native import NumberReader
from zerokl.check.wire import Json, Wire

ALWAYS = frozenset(
    {
        Can.FLUSH,
        Can.PROMPT_LOGPROBS,
        Can.RAW_LOGPROBS,
        Can.TOKEN_IDS,
        Can.TOP_ROWS,
        Can.STREAM,
        Can.ARRIVALS,
        Can.SEEDS,
        Can.SAMPLES,
        Can.STOPS,
        Can.WIDE_FLOATS,
    }
)


class VLLMTarget:
    """Cached tokens are counted where the server runs with --enable-prompt-tokens-details; otherwise seen by time."""

    def __init__(self, wire: Wire, model: Json, version: str, *, counts_cached: bool) -> None:
        self._wire = wire
        self._model = model
        self._version = version
        self._salts = itertools.count()
        self._salt = f"zerokl-check-{id(self)}"
        self.abilities = ALWAYS | ({Can.CACHED_COUNT} if counts_cached else set())

    @classmethod
    async def make(cls, wire: Wire, name: str = "") -> VLLMTarget:
        cards = (await wire.get("/v1/models"))["data"]
        card = next((card for card in cards if card["id"] == name), cards[0])
        version = await wire.get_or_none("/version") or {}
        probe = await wire.post(ROUTE, {"model": card["id"], "prompt": [1, 2, 3], "max_tokens": 1})
        counts = "cached_tokens" in ((probe.get("usage") or {}).get("prompt_tokens_details") or {})
        return cls(wire, card, str(version.get("version", "")), counts_cached=counts)

    async def facts(self) -> Facts:
        return Facts(
            kind="vllm",
            model=str(self._model["id"]),
            version=self._version,
            context=int(self._model.get("max_model_len") or 2048),
        )

    async def tokenize(self, text: str) -> list[int] | None:
        reply = await self._wire.post(
            "/tokenize", {"model": self._model["id"], "prompt": text, "add_special_tokens": False}
        )
        return [int(token) for token in reply["tokens"]]

    async def flush(self) -> None:
        """Nothing cached under another salt is ever used again."""
        self._salt = f"{self._salt.rsplit('.', 1)[0]}.{next(self._salts)}"

    async def counters(self) -> Counters:
        return Counters()

    async def ask(self, asks: Sequence[Ask]) -> list[list[Answer]]:
        """One request each, all at once: a list would share one seed and one length."""
        return list(await asyncio.gather(*(self._one(ask) for ask in asks)))

    async def stream(self, ask: Ask, on_token: Callable[[int], None]) -> list[Answer]:
        body = {**self._body(ask), "stream": True, "stream_options": {"include_usage": True}}
        reply, frames = await gather_stream(self._wire.frames(ROUTE, body), on_token)
        return parse_completion(ask, reply, num_frames=frames)

    async def texts(self, ids: Sequence[int]) -> dict[int, str]:
        bodies = {token: {"model": self._model["id"], "tokens": [token]} for token in ids}
        return {token: (await self._wire.post("/detokenize", body))["prompt"] for token, body in bodies.items()}

    async def echo(self, ask: Ask) -> Sequence[Answer]:
        raise CouldNotRun("this target doesn't echo")

    async def _one(self, ask: Ask) -> list[Answer]:
        body = self._body(ask)
        if ask.score_from is not None:
            body["prompt_logprobs"] = ask.top
        reply = await self._wire.post(ROUTE, body)
        if not ask.new_tokens:
            return [self._scored(replace(ask, new_tokens=0), reply)]
        answers = parse_completion(ask, reply)
        if ask.score_from is None:
            return answers
        scored = self._scored(ask, reply)
        return [replace(answer, rows=scored.rows + answer.rows) for answer in answers]

    def _body(self, ask: Ask) -> dict[str, Json]:
        """At least one token is generated: not every version takes none. It is dropped when none was asked."""
        sent = ask if ask.new_tokens else ask.generating(1)
        return completion_body(sent, model=self._model["id"], return_token_ids=True, cache_salt=self._salt)

    def _scored(self, ask: Ask, reply: Json) -> Answer:
        """The prompt's rows."""
        reader = NumberReader()
        usage = reply.get("usage") or {}
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        rows: list[Row] = []
        try:
            entries = reply["choices"][0].get("prompt_logprobs") or []
            for position, entry in enumerate(entries):
                if entry is not None and position > (ask.score_from or 0):
                    rows.append(_prompt_row(ask, position, entry, reader))
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise CouldNotRun(f"{ROUTE}: not an answer: {type(error).__name__} {error}") from error
        return Answer(ask, (), tuple(rows), cached, not_float32=tuple(reader.not_float32))


def _prompt_row(ask: Ask, position: int, entry: Json, reader: NumberReader) -> Row:
    """An entry maps ids to their logprob and rank: the prompt's own token, and the likeliest."""
    values = {int(token): item["logprob"] for token, item in entry.items()}
    ranked = sorted(values.items(), key=lambda item: (-item[1], item[0]))[: ask.top]
    token = ask.ids[position]
    return Row(position, token, reader.bits(values[token]), tuple((one, reader.bits(value)) for one, value in ranked))
