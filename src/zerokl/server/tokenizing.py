"""/tokenize, /detokenize, /tokenizer_info: the tokenizer over HTTP, as lm-eval's remote tokenizer wants it."""

from __future__ import annotations

import asyncio
from typing import Any

from zerokl.errors import InvalidRequest
from zerokl.server.chat_request import check_messages, render
from zerokl.server.exchange import Exchange
from zerokl.server.fields import message
from zerokl.server.prompts import BEGINNING, check_ids
from zerokl.server.service import Service
from zerokl.server.validate import check

MOST_CHARACTERS = 2**20
"""Of one text; more where the context is longer."""


async def tokenize(service: Service, exchange: Exchange) -> None:
    values = check("tokenize", await exchange.json())
    prompt, messages = values["prompt"], values["messages"]
    if (prompt is None) == (messages is None):
        given = "both" if prompt is not None else "neither"
        raise InvalidRequest(message("tokenize_needs", given=given), param="prompt")
    if messages is not None:
        check_messages(messages)
        ids = (await render(service, messages, exchange.received)).ids
        await _answer_tokens(service, exchange, list(ids), len(ids))
        return
    texts = prompt if isinstance(prompt, list) else [prompt]
    limit = max(MOST_CHARACTERS, BEGINNING * service.engine.limits.context)
    for text in texts:
        if len(text) > limit:
            raise InvalidRequest(message("text_too_long", name="prompt", given=len(text), limit=limit), param="prompt")
    rows = await asyncio.to_thread(_encode, service, texts, values["add_special_tokens"])
    if isinstance(prompt, list):
        await _answer_tokens(service, exchange, rows, [len(row) for row in rows])
    else:
        await _answer_tokens(service, exchange, rows[0], len(rows[0]))


def _encode(service: Service, texts: list[str], add_special_tokens: bool) -> list[list[int]]:
    return [service.tokenizer.encode(text, add_special_tokens=add_special_tokens) for text in texts]


async def _answer_tokens(service: Service, exchange: Exchange, tokens: list[Any], count: Any) -> None:
    context = service.engine.hello.context
    await exchange.answer_json({"tokens": tokens, "count": count, "max_model_len": context})


async def detokenize(service: Service, exchange: Exchange) -> None:
    values = check("detokenize", await exchange.json())
    given, skip = values["tokens"], values["skip_special_tokens"]
    limits = service.engine.limits
    if given and isinstance(given[0], list):
        rows = [check_ids(ids, f"tokens[{i}]", limits.vocab) for i, ids in enumerate(given)]
        text: Any = [service.tokenizer.decode(ids, skip_special_tokens=skip) for ids in rows]
    else:
        text = service.tokenizer.decode(check_ids(given, "tokens", limits.vocab), skip_special_tokens=skip)
    await exchange.answer_json({"text": text})


async def tokenizer_info(service: Service, exchange: Exchange) -> None:
    special = dict(service.tokenizer.special.names)
    await exchange.answer_json(
        {
            "tokenizer_class": service.engine.facts.get("tokenizer_class"),
            "bos_token": special.get("bos_token"),
            "eos_token": special.get("eos_token"),
            "pad_token": special.get("pad_token"),
            "model_max_length": service.engine.hello.context,
            "chat_template": service.tokenizer.chat_template or None,
        }
    )
