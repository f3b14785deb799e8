"""Token ids and lengths against the model's limits, each refusal with the value given and what is allowed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from zerokl.errors import InvalidRequest
from zerokl.server.fields import message, shown
from zerokl.server.job import Prompt
from zerokl.tokenizer import Tokenizer

LONG_TEXT = 20_000
"""Characters; a longer text is encoded off the event loop (the tokenizer lets go of the GIL)."""
BEGINNING = 16
"""Characters for each token of the context: of a longer text its beginning is encoded first."""


class Limits(Struct, frozen=True):
    """What the engine said it can take."""

    vocab: int
    context: int


def check_ids(ids: list[Any], name: str, vocab: int) -> list[int]:
    """The ids, if each is a JSON integer in the vocabulary. The common case runs at C speed: prompts are long."""
    if set(map(type, ids)) <= {int} and (not ids or (min(ids) >= 0 and max(ids) < vocab)):
        return ids
    for position, value in enumerate(ids):
        if type(value) is not int:
            raise InvalidRequest(message("id_type", name=name, position=position, value=shown(value)), param=name)
        if not 0 <= value < vocab:
            text = message("id_range", name=name, position=position, last=vocab - 1, value=shown(value))
            raise InvalidRequest(text, param=name)
    raise AssertionError("unreachable: the fast check failed, so some id is bad")


def check_bias(bias: Sequence[tuple[int, float]], name: str, limits: Limits) -> Sequence[tuple[int, float]]:
    for token_id, _ in bias:
        if token_id >= limits.vocab:
            raise InvalidRequest(
                message("id_range", name=name, position=shown(str(token_id)), last=limits.vocab - 1, value=token_id),
                param=name,
            )
    return bias


def check_length(prompt: Prompt, max_new_tokens: int | None, limits: Limits) -> None:
    """The prompt must leave room for what was asked for, and for one token if that is open. Nothing is cut silently.

    A prompt as long as the context can still be scored (max_new_tokens 0): the longest output can be checked whole.
    """
    given = len(prompt.ids)
    if given > limits.context or (given == limits.context and max_new_tokens != 0):
        raise _too_long(message("context_full", prompt=given, context=limits.context))
    total = given + (max_new_tokens or 0)
    if total > limits.context:
        raise _too_long(
            message("context_over", prompt=given, max_new=max_new_tokens, total=total, context=limits.context)
        )


def bounded_ids(tokenizer: Tokenizer, text: str, context: int, add_special_tokens: bool = True) -> list[int]:
    """The ids of a text, unless they are far more than the context: then it is refused by its beginning alone.

    The library takes 150 bytes of memory for each character, so a body of 64 MiB would take 10 GB.
    """
    size = BEGINNING * context
    while size < len(text):
        if len(tokenizer.encode(text[:size], add_special_tokens=add_special_tokens)) > 2 * context:
            raise _too_long(message("context_more", context=context))
        size *= 4
    return tokenizer.encode(text, add_special_tokens=add_special_tokens)


async def encode_all(texts: Sequence[str], name: str, tokenizer: Tokenizer, context: int) -> list[Prompt]:
    """Each text as ids. A text without any token (empty, no BOS) is refused."""

    def encode() -> list[Prompt]:
        return [Prompt(bounded_ids(tokenizer, text, context), text) for text in texts]

    long = sum(map(len, texts)) > LONG_TEXT
    prompts = await asyncio.to_thread(encode) if long else encode()
    for position, prompt in enumerate(prompts):
        if not prompt.ids:
            raise empty(name if len(texts) == 1 else f"{name}[{position}]")
    return prompts


def empty(name: str) -> InvalidRequest:
    return InvalidRequest(message("empty_prompt", name=name), param=name.partition("[")[0])


def check_not_empty(items: Sequence[Sequence[Any]], name: str, listed: bool) -> None:
    """No prompt, or a prompt of nothing."""
    if not items:
        raise empty(name)
    for position, item in enumerate(items):
        if not item:
            raise empty(f"{name}[{position}]" if listed else name)


def _too_long(text: str) -> InvalidRequest:
    return InvalidRequest(text, code="context_length_exceeded")
