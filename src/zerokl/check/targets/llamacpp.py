"""llama.cpp's server, through /completion. It scores no prompts; `cache_prompt: false` makes a request cold."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from zerokl.check.answers import Answer, Ask, Phase, Row
from zerokl.check.outcome import CouldNotRun
from zerokl.check.targets.base import Can, Counters, Facts
from zerokl.check.targets.native import NumberReader, count_problems
from zerokl.check.wire import Json, Wire

ROUTE = "/completion"
SHARED = 4
"""Ids that two texts begin with alike to count as one prefix."""


class LlamaCppTarget:
    """A slot answers one request at a time; --parallel says how many there are."""

    abilities = frozenset(
        {
            Can.FLUSH,
            Can.CACHED_COUNT,
            Can.RAW_LOGPROBS,
            Can.TOKEN_IDS,
            Can.TOP_ROWS,
            Can.STREAM,
            Can.ARRIVALS,
            Can.SEEDS,
            Can.WIDE_FLOATS,
        }
    )

    def __init__(self, wire: Wire, props: Json) -> None:
        self._wire = wire
        self._props = props
        self._answered: list[tuple[int, ...]] = []
        """Texts of the answers since the last flush: only what shares a beginning with one of them may be warm."""

    @classmethod
    async def make(cls, wire: Wire, _: str = "") -> LlamaCppTarget:
        return cls(wire, await wire.get("/props"))

    async def facts(self) -> Facts:
        props = self._props
        settings = props["default_generation_settings"]
        return Facts(
            kind="llama.cpp",
            model=str(props.get("model_path", "")).rsplit("/", 1)[-1],
            version=str(props.get("build_info", "")),
            page_size=1,
            chunk=512,
            context=int(settings.get("n_ctx") or 2048),
            max_running=int(props.get("total_slots") or 1),
        )

    async def tokenize(self, text: str) -> list[int] | None:
        reply = await self._wire.post("/tokenize", {"content": text, "add_special": False, "parse_special": False})
        return [int(token) for token in reply["tokens"]]

    async def flush(self) -> None:
        """Slots can't be emptied without a folder to save them in; requests are told to reuse nothing instead."""
        self._answered.clear()

    async def counters(self) -> Counters:
        return Counters()

    async def ask(self, asks: Sequence[Ask]) -> list[list[Answer]]:
        return list(await asyncio.gather(*(self._one(ask) for ask in asks)))

    async def stream(self, ask: Ask, on_token: Callable[[int], None]) -> list[Answer]:
        body = {**_body(ask, self._is_cold(ask)), "stream": True}
        reply, frames = await _gathered(self._wire.frames(ROUTE, body, ends_with_done=False), on_token)
        return [self._keep(_answer(ask, reply, frames))]

    async def texts(self, ids: Sequence[int]) -> dict[int, str]:
        return {token: (await self._wire.post("/detokenize", {"tokens": [token]}))["content"] for token in ids}

    async def echo(self, ask: Ask) -> Sequence[Answer]:
        raise CouldNotRun("this target doesn't echo")

    async def _one(self, ask: Ask) -> list[Answer]:
        reply = await self._wire.post(ROUTE, _body(ask, self._is_cold(ask)))
        return [self._keep(_answer(ask, reply, 0))]

    def _is_cold(self, ask: Ask) -> bool:
        return not any(text[:SHARED] == ask.ids[:SHARED] for text in self._answered)

    def _keep(self, answer: Answer) -> Answer:
        self._answered.append(answer.text_ids)
        return answer


def _body(ask: Ask, cold: bool) -> dict[str, Json]:
    """Only temperature and top-p are left of the sampler chain: its defaults hold penalties and min-p."""
    body: dict[str, Json] = {
        "prompt": list(ask.ids),
        "n_predict": ask.new_tokens,
        "temperature": ask.temperature,
        "samplers": ["top_p", "temperature"],
        "top_p": ask.top_p,
        "ignore_eos": True,
        "cache_prompt": not cold,
        "return_tokens": True,
        "n_probs": ask.top if ask.logprobs else 0,
    }
    if ask.seed is not None:
        body["seed"] = ask.seed
    return body


async def _gathered(frames: AsyncIterator[Json], on_token: Callable[[int], None]) -> tuple[Json, int]:
    """The frames' tokens and probabilities, and the last frame's totals, as one reply."""
    tokens: list[int] = []
    probabilities: list[Json] = []
    last: Json = {}
    count = 0
    async for frame in frames:
        new = frame.get("tokens") or []
        if not frame.get("stop"):
            tokens += new
            probabilities += frame.get("completion_probabilities") or []
            count += bool(new)
            on_token(len(tokens))
        last = frame
    return {**last, "tokens": tokens, "completion_probabilities": probabilities}, count


def _answer(ask: Ask, reply: Json, frames: int) -> Answer:
    reader = NumberReader()
    try:
        output = tuple(int(token) for token in reply["tokens"]) if ask.new_tokens else ()
        entries = reply.get("completion_probabilities") or []
        rows = [_row(ask, index, entry, reader) for index, entry in enumerate(entries[: _aligned(entries, output)])]
        cached = (reply.get("timings") or {}).get("cache_n")
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise CouldNotRun(f"{ROUTE}: not an answer: {type(error).__name__} {error}") from error
    return Answer(
        ask=ask,
        output=output,
        rows=tuple(rows),
        cached_tokens=None if cached is None else int(cached),
        finish=str(reply.get("stop_type", "")),
        not_float32=tuple(reader.not_float32),
        problems=tuple(count_problems(ask, output, None, None)),
        num_frames=frames,
    )


def _aligned(entries: Sequence[Json], output: Sequence[int]) -> int:
    """How many entries belong to the tokens at their place: one whose text ends inside a character gets no entry, so
    after it the places are no longer known."""
    pairs = zip(entries, output, strict=False)
    return next(
        (index for index, (entry, token) in enumerate(pairs) if entry["id"] != token), min(len(entries), len(output))
    )


def _row(ask: Ask, index: int, entry: Json, reader: NumberReader) -> Row:
    phase: Phase = "decoded" if index else "first"
    top = tuple((int(item["id"]), reader.bits(item["logprob"])) for item in entry["top_logprobs"])
    return Row(len(ask.ids) + index, int(entry["id"]), reader.bits(entry["logprob"]), top, phase)
