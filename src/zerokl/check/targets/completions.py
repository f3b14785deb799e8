"""/v1/completions with ids in and echo: prompt and output scored in one list, tokens named `token_id:N`."""

from __future__ import annotations

from typing import Any

from zerokl.check.answers import Answer, Ask, Phase, Row
from zerokl.check.outcome import CouldNotRun
from zerokl.check.targets.native import NumberReader, count_problems
from zerokl.check.wire import Json

TOKEN_ID = "token_id:"


def echo_body(ask: Ask) -> dict[str, Json]:
    body: dict[str, Json] = {
        "prompt": list(ask.ids),
        "max_tokens": ask.new_tokens,
        "temperature": ask.temperature,
        "echo": True,
        "logprobs": ask.top,
        "ignore_eos": True,
        "return_tokens_as_token_ids": True,
    }
    if not ask.greedy and ask.seed is not None:
        body["seed"] = ask.seed
    return body


def echo_answers(ask: Ask, reply: Json) -> list[Answer]:
    try:
        return [_answer(ask, choice, index, reply) for index, choice in enumerate(reply["choices"])]
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise CouldNotRun(f"/v1/completions: not an answer: {type(error).__name__} {error}") from error


def _answer(ask: Ask, choice: Json, sample: int, reply: Json) -> Answer:
    logprobs = choice["logprobs"]
    tokens = [_token_id(text) for text in logprobs["tokens"]]
    prompt = len(ask.ids)
    problems = []
    if tuple(tokens[:prompt]) != ask.ids:
        problems.append("the echoed ids are not the ones sent")
    reader = NumberReader()
    rows = [_row(logprobs, position, tokens[position], prompt, reader) for position in range(1, len(tokens))]
    output = tuple(tokens[prompt:])
    usage: dict[str, Any] = reply.get("usage") or {}
    problems += count_problems(ask, output, usage.get("prompt_tokens"), usage.get("completion_tokens"))
    details = usage.get("prompt_tokens_details") or {}
    return Answer(
        ask=ask,
        output=output,
        rows=() if problems[:1] == ["the echoed ids are not the ones sent"] else tuple(rows),
        cached_tokens=details.get("cached_tokens"),
        finish=str(choice.get("finish_reason", "")),
        sample=sample,
        not_float32=tuple(reader.not_float32),
        problems=tuple(problems),
    )


def _row(logprobs: Json, position: int, token: int, prompt: int, reader: NumberReader) -> Row:
    phase: Phase = "scored" if position < prompt else "first" if position == prompt else "decoded"
    top = logprobs["top_logprobs"][position] or {}
    likeliest = tuple((_token_id(text), reader.bits(value)) for text, value in top.items())
    return Row(position, token, reader.bits(logprobs["token_logprobs"][position]), likeliest, phase)


def _token_id(text: str) -> int:
    if not text.startswith(TOKEN_ID):
        raise ValueError(f"{text!r} does not name a token id")
    return int(text[len(TOKEN_ID) :])
