"""Chat-only routes: text in, and out come tokens as text with their logprobs. An "id" of a prompt is one character."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence

from zerokl.check.answers import Answer, Ask, Phase, Row
from zerokl.check.outcome import CouldNotRun
from zerokl.check.targets.base import Can, Counters, Facts
from zerokl.check.targets.completions import PSEUDO_IDS, TOKEN_ID, pseudo_id, token_id
from zerokl.check.targets.native import NumberReader, count_problems
from zerokl.check.wire import Json, Wire

ROUTE = "/v1/chat/completions"
TOLD_IDS = 2 * PSEUDO_IDS


class ChatTarget:
    """Top rows are lists, so no two tokens collide; but a prompt can't be scored, continued or flushed."""

    abilities = frozenset({Can.STREAM, Can.ARRIVALS, Can.SEEDS, Can.TOP_ROWS})

    def __init__(self, wire: Wire, model: str) -> None:
        self._wire = wire
        self._model = model
        self._names: dict[int, str] = {}
        """What the tokens that were seen are called: their numbers mean nothing to people."""

    @classmethod
    async def make(cls, wire: Wire, model: str = "") -> ChatTarget:
        return cls(wire, model or str((await wire.get("/v1/models"))["data"][0]["id"]))

    async def facts(self) -> Facts:
        return Facts(kind="chat", model=self._model, largest_id=126)

    async def tokenize(self, text: str) -> list[int] | None:
        return [ord(letter) for letter in text if 32 <= ord(letter) < 127]

    async def flush(self) -> None:
        raise CouldNotRun("this target can't empty its cache")

    async def counters(self) -> Counters:
        return Counters()

    async def ask(self, asks: Sequence[Ask]) -> list[list[Answer]]:
        return list(await asyncio.gather(*(self._one(ask) for ask in asks)))

    async def stream(self, ask: Ask, on_token: Callable[[int], None]) -> list[Answer]:
        body = {**self._body(ask), "stream": True}
        reply, frames = await _gathered(self._wire.frames(ROUTE, body), on_token)
        return _answers(ask, reply, frames, self._names)

    async def texts(self, ids: Sequence[int]) -> dict[int, str]:
        return {token: self._names[token] for token in ids if token in self._names}

    async def echo(self, ask: Ask) -> Sequence[Answer]:
        raise CouldNotRun("this target doesn't echo")

    async def _one(self, ask: Ask) -> list[Answer]:
        sent = ask if ask.new_tokens else ask.generating(1)
        answers = _answers(sent, await self._wire.post(ROUTE, self._body(sent)), 0, self._names)
        return answers if ask.new_tokens else [Answer(ask, (), ()) for _ in answers]

    def _body(self, ask: Ask) -> dict[str, Json]:
        body: dict[str, Json] = {
            "model": self._model,
            "messages": [{"role": "user", "content": "".join(chr(one) for one in ask.ids)}],
            "max_tokens": ask.new_tokens,
            "temperature": ask.temperature,
            "logprobs": True,
            "top_logprobs": ask.top,
            "n": ask.samples,
        }
        if not ask.greedy:
            body["top_p"] = ask.top_p
            if ask.seed is not None:
                body["seed"] = ask.seed
        return body


async def _gathered(frames: AsyncIterator[Json], on_token: Callable[[int], None]) -> tuple[Json, int]:
    choices: dict[int, Json] = {}
    count = total = 0
    async for frame in frames:
        for part in frame.get("choices", []):
            whole = choices.setdefault(part["index"], {"index": part["index"], "logprobs": {"content": []}})
            new = (part.get("logprobs") or {}).get("content") or []
            whole["logprobs"]["content"] += new
            total += len(new)
            count += bool(new)
            if new:
                on_token(total)
    return {"choices": list(choices.values())}, count


def _answers(ask: Ask, reply: Json, frames: int, names: dict[int, str]) -> list[Answer]:
    try:
        choices = sorted(reply["choices"], key=lambda choice: choice["index"])
        return [_answer(ask, choice, sample, frames, names) for sample, choice in enumerate(choices)]
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise CouldNotRun(f"{ROUTE}: not an answer: {type(error).__name__} {error}") from error


def _answer(ask: Ask, choice: Json, sample: int, frames: int, names: dict[int, str]) -> Answer:
    """An answer may end early: chat routes have no ignore_eos, so a short one is no problem."""
    reader = NumberReader()
    entries = choice["logprobs"]["content"]
    for item in entries:
        names.update({_name(one): str(one["token"]) for one in (item, *(item.get("top_logprobs") or []))})
    output = tuple(_name(item) for item in entries)
    rows = tuple(_row(ask, index, item, reader) for index, item in enumerate(entries))
    problems = [] if len(output) <= ask.new_tokens and output else count_problems(ask, output, None, None)
    return Answer(
        ask=ask,
        output=output,
        rows=rows,
        sample=sample,
        not_float32=tuple(reader.not_float32),
        problems=tuple(problems),
        num_frames=frames,
    )


def _name(item: Json) -> int:
    """By its id where that is told, as llama.cpp does; else by its bytes: pieces of one character all have the
    replacement sign as their text. Told ids are shifted, since a prompt's "ids" are its characters."""
    if isinstance(item.get("id"), int):
        return TOLD_IDS + int(item["id"])
    if item.get("bytes") and not item["token"].startswith(TOKEN_ID):
        return pseudo_id(bytes(item["bytes"]))
    return token_id(item["token"])


def _row(ask: Ask, index: int, item: Json, reader: NumberReader) -> Row:
    """Tokens of one name, such as special ones without a text, are left out: nobody knows which is which."""
    named = [(_name(one), reader.bits(one["logprob"])) for one in item.get("top_logprobs") or []]
    times = Counter(name for name, _ in named)
    chosen, bits = _name(item), reader.bits(item["logprob"])
    top = tuple((name, value) for name, value in named if times[name] == 1)
    phase: Phase = "decoded" if index else "first"
    return Row(len(ask.ids) + index, chosen, bits if times[chosen] <= 1 else None, top, phase)
