"""/v1/completions with ids in: bodies, answers, streams gathered into answers. For zerokl's echo, vLLM, and others."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from zerokl.check.answers import Answer, Ask, Phase, Row
from zerokl.check.outcome import CouldNotRun
from zerokl.check.targets.native import NumberReader, count_problems
from zerokl.check.wire import Json

ROUTE = "/v1/completions"
TOKEN_ID = "token_id:"
PSEUDO_IDS = 2**32
"""Ids at and above this stand for a token's text, where a server doesn't tell its id."""


def token_id(text: str) -> int:
    """The id of a token named `token_id:N`, or a number that stands for its text."""
    return int(text[len(TOKEN_ID) :]) if text.startswith(TOKEN_ID) else pseudo_id(text.encode())


def pseudo_id(content: bytes) -> int:
    return PSEUDO_IDS + int.from_bytes(hashlib.blake2b(content, digest_size=4).digest(), "little")


def completion_body(ask: Ask, *, echo: bool = False, model: str = "", **more: Json) -> dict[str, Json]:
    body: dict[str, Json] = {
        "prompt": list(ask.ids),
        "max_tokens": ask.new_tokens,
        "temperature": ask.temperature,
        "ignore_eos": ask.stop is None,
        "return_tokens_as_token_ids": True,
        **more,
    }
    if ask.stop is not None:
        body["stop_token_ids"] = [ask.stop]
    if model:
        body["model"] = model
    if ask.logprobs or echo:
        body["logprobs"] = ask.top
    if echo:
        body["echo"] = True
    if ask.samples > 1:
        body["n"] = ask.samples
    if not ask.greedy:
        body["top_p"] = ask.top_p
        if ask.seed is not None:
            body["seed"] = ask.seed
    return body


def echo_body(ask: Ask) -> dict[str, Json]:
    return completion_body(ask, echo=True)


def echo_answers(ask: Ask, reply: Json) -> list[Answer]:
    return parse_completion(ask, reply, echo=True)


def parse_completion(ask: Ask, reply: Json, *, echo: bool = False, num_frames: Sequence[int] = ()) -> list[Answer]:
    """One answer per choice."""
    try:
        choices = sorted(reply["choices"], key=lambda choice: choice.get("index", 0))
        return [
            _answer(ask, choice, sample, reply.get("usage") or {}, echo, num_frames[sample] if num_frames else 0)
            for sample, choice in enumerate(choices)
        ]
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise CouldNotRun(f"{ROUTE}: not an answer: {type(error).__name__} {error}") from error


async def gather_stream(
    frames: AsyncIterator[Json], on_token: Callable[[int], None]
) -> tuple[dict[str, Json], list[int]]:
    """A stream's chunks as one whole reply, and per choice the number of chunks with a token."""
    choices: dict[int, dict[str, Json]] = {}
    counts: dict[int, int] = {}
    usage: Json = None
    total = 0
    async for frame in frames:
        usage = frame.get("usage") or usage
        for part in frame.get("choices", []):
            index = part.get("index", 0)
            whole = choices.setdefault(index, {"index": index, "token_ids": [], "logprobs": None})
            new = _append(whole, part)
            counts[index] = counts.get(index, 0) + (new > 0)
            total += new
            if new:
                on_token(total)
    return {"choices": list(choices.values()), "usage": usage}, [counts[index] for index in sorted(choices)]


def _append(whole: dict[str, Json], part: Json) -> int:
    """Adds a chunk to its choice; how many tokens it brought (a chunk without logprobs and ids counts as one)."""
    whole["finish_reason"] = part.get("finish_reason") or whole.get("finish_reason")
    whole["token_ids"] += part.get("token_ids") or []
    logprobs = part.get("logprobs")
    if not logprobs:
        return len(part.get("token_ids") or []) or int(bool(part.get("text")))
    if whole["logprobs"] is None:
        whole["logprobs"] = {"tokens": [], "token_logprobs": [], "top_logprobs": []}
    for name, column in whole["logprobs"].items():
        column += logprobs.get(name) or []
    return len(logprobs["tokens"])


def _answer(ask: Ask, choice: Json, sample: int, usage: dict[str, Any], echo: bool, num_frames: int) -> Answer:
    reader = NumberReader()
    problems: list[str] = []
    logprobs = choice.get("logprobs")
    prompt = len(ask.ids) if echo else 0
    names = [token_id(text) for text in logprobs["tokens"]] if logprobs else list(choice.get("token_ids") or [])
    if echo and tuple(names[:prompt]) != ask.ids and max(names, default=0) < PSEUDO_IDS:
        problems.append("the echoed ids are not the ones sent")
    output = tuple(names[prompt:])
    ids = (*ask.ids, *output)
    rows = []
    if logprobs and not problems:
        first = 1 if echo else 0
        for index in range(first, len(names)):
            position = index if echo else len(ask.ids) + index
            rows.append(_row(ask, logprobs, index, position, ids[position], reader))
    stopped = choice.get("finish_reason") == "stop"
    problems += count_problems(ask, output, usage.get("prompt_tokens"), None, stopped=stopped)
    details = usage.get("prompt_tokens_details") or {}
    return Answer(
        ask=ask,
        output=output,
        rows=tuple(rows),
        cached_tokens=details.get("cached_tokens"),
        finish=str(choice.get("finish_reason", "")),
        sample=sample,
        not_float32=tuple(reader.not_float32),
        problems=tuple(problems),
        num_frames=num_frames,
    )


def _row(ask: Ask, logprobs: Json, index: int, position: int, token: int, reader: NumberReader) -> Row:
    prompt = len(ask.ids)
    phase: Phase = "scored" if position < prompt else "first" if position == prompt else "decoded"
    tops = logprobs.get("top_logprobs") or []
    top = tops[index] if index < len(tops) else None
    return Row(
        position, token, reader.bits(logprobs["token_logprobs"][index]), likeliest(ask, top or {}, reader), phase
    )


def likeliest(ask: Ask, top: dict[str, Json], reader: NumberReader) -> tuple[tuple[int, int], ...]:
    """The top-k of a text -> logprob map. Servers add the chosen token, in any order; and two ids with one text collide
    into one entry, which shows as an entry too few: such a row is left out, because nobody knows whose value stayed."""
    if len(top) < ask.top:
        return ()
    entries = sorted(((token_id(text), value) for text, value in top.items()), key=lambda item: (-item[1], item[0]))
    return tuple((token, reader.bits(value)) for token, value in entries[: ask.top])
