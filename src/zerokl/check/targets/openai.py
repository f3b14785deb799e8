"""Any /v1/completions with logprobs. What it can do is found out with a few small requests; the table says the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from zerokl.check.answers import Answer, Ask
from zerokl.check.bits import is_float32
from zerokl.check.outcome import CouldNotRun
from zerokl.check.targets.base import Can, Counters, Facts
from zerokl.check.targets.completions import ROUTE, completion_body, gather_stream, parse_completion
from zerokl.check.wire import Json, Wire

PROBE = Ask((72, 101, 108, 108, 111), 1, top=2)


class OpenAITarget:
    """Prompts are token ids where the server takes them; otherwise text, made of one code point per "id"."""

    def __init__(self, wire: Wire, model: str, *, takes_ids: bool, abilities: frozenset[Can]) -> None:
        self._wire = wire
        self._model = model
        self._takes_ids = takes_ids
        self.abilities = abilities

    @classmethod
    async def make(cls, wire: Wire, model: str = "") -> OpenAITarget:
        model = model or str((await wire.get("/v1/models"))["data"][0]["id"])
        takes_ids = await _try(wire, completion_body(PROBE, model=model)) is not None
        target = cls(wire, model, takes_ids=takes_ids, abilities=frozenset())
        target.abilities = await target._probe()
        return target

    async def facts(self) -> Facts:
        return Facts(kind="openai", model=self._model, largest_id=None if self._takes_ids else 126)

    async def tokenize(self, text: str) -> list[int] | None:
        """With text prompts an "id" is a printable ASCII character."""
        if self._takes_ids:
            reply = await _try(self._wire, {"prompt": text, "add_special_tokens": False}, "/tokenize")
            return None if reply is None else [int(token) for token in reply["tokens"]]
        return [ord(letter) for letter in text if 32 <= ord(letter) < 127]

    async def flush(self) -> None:
        raise CouldNotRun("this target can't empty its cache")

    async def counters(self) -> Counters:
        return Counters()

    async def ask(self, asks: Sequence[Ask]) -> list[list[Answer]]:
        return list(await asyncio.gather(*(self._one(ask) for ask in asks)))

    async def stream(self, ask: Ask, on_token: Callable[[int], None]) -> list[Answer]:
        reply, frames = await gather_stream(self._wire.frames(ROUTE, {**self._body(ask), "stream": True}), on_token)
        return parse_completion(ask, reply, num_frames=frames)

    async def texts(self, ids: Sequence[int]) -> dict[int, str]:
        return {}

    async def echo(self, ask: Ask) -> Sequence[Answer]:
        return parse_completion(ask, await self._wire.post(ROUTE, self._body(ask, echo=True)), echo=True)

    async def _one(self, ask: Ask) -> list[Answer]:
        echo = ask.score_from is not None
        reply = await self._wire.post(
            ROUTE, self._body(ask if ask.new_tokens or echo else ask.generating(1), echo=echo)
        )
        answers = parse_completion(ask if ask.new_tokens or echo else ask.generating(1), reply, echo=echo)
        return answers if ask.new_tokens else [_without_output(ask, answer) for answer in answers]

    def _body(self, ask: Ask, *, echo: bool = False) -> dict[str, Json]:
        body = completion_body(ask, echo=echo, model=self._model)
        if not self._takes_ids:
            body["prompt"] = "".join(chr(one) for one in ask.ids)
        return body

    async def _probe(self) -> frozenset[Can]:
        """Abilities by trial. Seeds and streams are taken on trust: a wrong trust makes a case fail, not pass."""
        can = {Can.STREAM, Can.ARRIVALS, Can.SEEDS, Can.TOP_ROWS}
        plain = await self._wire.post(ROUTE, self._body(PROBE))
        logprobs = plain["choices"][0].get("logprobs")
        if not logprobs:
            raise CouldNotRun(f"{self._wire.url}{ROUTE} gives no logprobs: there are no bits to compare")
        if logprobs["tokens"][0].startswith("token_id:"):
            can.add(Can.TOKEN_IDS)
        if all(is_float32(value) for value in logprobs["token_logprobs"]):
            can.add(Can.WIDE_FLOATS)
        if "cached_tokens" in ((plain.get("usage") or {}).get("prompt_tokens_details") or {}):
            can.add(Can.CACHED_COUNT)
        echoed = await _try(self._wire, self._body(PROBE, echo=True)) if self._takes_ids else None
        if echoed and len((echoed["choices"][0].get("logprobs") or {}).get("tokens", [])) == len(PROBE.ids) + 1:
            can |= {Can.PROMPT_LOGPROBS, Can.ECHO}
        return frozenset(can)


def _without_output(ask: Ask, answer: Answer) -> Answer:
    rows = tuple(row for row in answer.rows if row.position < len(ask.ids))
    return Answer(ask, (), rows, answer.cached_tokens, not_float32=answer.not_float32)


async def _try(wire: Wire, body: Json, path: str = ROUTE) -> Json | None:
    try:
        return await wire.post(path, body)
    except CouldNotRun:
        return None
