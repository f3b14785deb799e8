"""A Hugging Face model in this process: no server, no cache, no scheduler. The reference that others are held against,
and by itself a look at what padding, batching and decoding do to the bits of plain transformers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from zerokl.check.answers import Answer, Ask, Phase, Row
from zerokl.check.bits import float32_bits
from zerokl.check.outcome import CouldNotRun
from zerokl.check.targets.base import Can, Counters, Facts
from zerokl.check.targets.torch_model import TorchModel, parse_place
from zerokl.check.wire import Wire


class Model(Protocol):
    """What the adapter asks of a model; TorchModel is one, tests have another."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def vocabulary(self) -> int: ...
    @property
    def context(self) -> int: ...
    def encode(self, text: str) -> list[int] | None: ...
    def decode(self, token: int) -> str | None: ...
    def prefill(self, prompts: Sequence[Sequence[int]], *, all_rows: bool) -> tuple[np.ndarray, Any]: ...
    def decode_step(self, tokens: Sequence[int], state: Any) -> tuple[np.ndarray, Any]: ...


class HuggingFaceTarget:
    """Requests that come together are one padded batch; requests with prompt scores run one by one."""

    abilities = frozenset(
        {Can.PROMPT_LOGPROBS, Can.RAW_LOGPROBS, Can.TOKEN_IDS, Can.TOP_ROWS, Can.COUNTERS, Can.WIDE_FLOATS}
    )

    def __init__(self, wire: Wire, model: Model) -> None:
        self._wire = wire
        self._model = model
        self._widths: dict[int, int] = {}
        self._submitted = 0
        self._turn = asyncio.Lock()

    @classmethod
    async def make(cls, wire: Wire, _: str = "") -> HuggingFaceTarget:
        return cls(wire, await asyncio.to_thread(TorchModel, parse_place(wire.url)))

    async def facts(self) -> Facts:
        model = self._model
        return Facts(
            kind="huggingface",
            model=model.name,
            version=model.version,
            context=model.context,
            largest_id=model.vocabulary - 1,
        )

    async def tokenize(self, text: str) -> list[int] | None:
        return self._model.encode(text)

    async def flush(self) -> None:
        """Nothing is ever kept."""

    async def counters(self) -> Counters:
        return Counters(steps=sum(self._widths.values()), widths=dict(self._widths), submitted=self._submitted)

    async def ask(self, asks: Sequence[Ask]) -> list[list[Answer]]:
        self._wire.budget.spend()
        self._submitted += len(asks)
        async with self._turn:
            return await asyncio.to_thread(self._answers, asks)

    async def stream(self, ask: Ask, on_token: Callable[[int], None]) -> list[Answer]:
        raise CouldNotRun("this target doesn't stream")

    async def texts(self, ids: Sequence[int]) -> dict[int, str]:
        texts = {token: self._model.decode(token) for token in ids}
        return {token: text for token, text in texts.items() if text is not None}

    async def echo(self, ask: Ask) -> Sequence[Answer]:
        raise CouldNotRun("this target doesn't echo")

    def _answers(self, asks: Sequence[Ask]) -> list[list[Answer]]:
        """One batch of all that generate; what is scored comes alone, since padding would shift its rows."""
        generating = [ask for ask in asks if ask.score_from is None]
        answers = iter(self._batch(generating) if generating else [])
        return [[next(answers) if ask.score_from is None else self._batch([ask])[0]] for ask in asks]

    def _batch(self, asks: Sequence[Ask]) -> list[Answer]:
        scored = asks[0].score_from is not None
        found, state = self._model.prefill([ask.ids for ask in asks], all_rows=scored)
        rows = [_scored_rows(asks[0], found[0])] if scored else [[] for _ in asks]
        outputs: list[list[int]] = [[] for _ in asks]
        last = found[:, -1]
        for step in range(max(ask.new_tokens for ask in asks)):
            tokens = [int(np.argmax(row)) for row in last]
            for place, ask in enumerate(asks):
                if step < ask.new_tokens:
                    phase: Phase = "decoded" if step else "first"
                    rows[place].append(_row(ask, len(ask.ids) + step, tokens[place], last[place], phase))
                    outputs[place].append(tokens[place])
            if step + 1 < max(ask.new_tokens for ask in asks):
                self._widths[len(asks)] = self._widths.get(len(asks), 0) + 1
                found, state = self._model.decode_step(tokens, state)
                last = found[:, -1]
        return [
            Answer(ask, tuple(output), tuple(row for row in mine if ask.logprobs), cached_tokens=0)
            for ask, output, mine in zip(asks, outputs, rows, strict=True)
        ]


def _scored_rows(ask: Ask, found: np.ndarray) -> list[Row]:
    """Row i of the model speaks of token i + 1."""
    first = (ask.score_from or 0) + 1
    return [_row(ask, place, ask.ids[place], found[place - 1], "scored") for place in range(first, len(ask.ids))]


def _row(ask: Ask, position: int, token: int, row: np.ndarray, phase: Phase) -> Row:
    """Ties go to the smaller id, as in argmax."""
    if np.isnan(row[token]):
        raise CouldNotRun(f"the model's logprob at position {position} is NaN")
    best = np.argpartition(-row, ask.top)[: ask.top] if ask.top < len(row) else np.arange(len(row))
    ranked = sorted((int(one) for one in best), key=lambda one: (-row[one], one))
    top = tuple((one, float32_bits(float(row[one]))) for one in ranked)
    return Row(position, token, float32_bits(float(row[token])), top, phase)
