"""/v1/chat/completions: one conversation, n samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from zerokl.server import streaming
from zerokl.server.chat_body import ChatChoice
from zerokl.server.chat_request import chat_jobs, chat_prompt, check_chat, parser_of
from zerokl.server.exchange import Exchange
from zerokl.server.openai_common import Shape, shape_of, usage_of
from zerokl.server.seeds import name_seeds
from zerokl.server.service import Service, refused
from zerokl.server.tokens import id_text
from zerokl.server.tools.forced import forced_name
from zerokl.server.validate import check
from zerokl.wire.records import Record


async def chat_completions(service: Service, exchange: Exchange) -> None:
    body = await exchange.json()
    limits = service.engine.limits
    values = check("chat", body)
    check_chat(service, values)
    forced = forced_name(values)
    new_parser = parser_of(service.config, values, forced)
    prompt = await chat_prompt(service, values, exchange.received)
    jobs = chat_jobs(values, prompt, limits, forced, new_parser().shows_special)
    [name] = service.names("chatcmpl-", [values["rid"]])
    kind = "chat.completion.chunk" if values["stream"] else "chat.completion"
    shape = shape_of(service, values, name, kind)
    token_text = id_text if shape.tokens_as_ids else service.tokenizer.token_text
    choices = [
        ChatChoice(job, name, i, new_parser(), service.tokenizer.token_bytes, token_text, shape.token_ids)
        for i, job in enumerate(jobs)
    ]
    async with (
        exchange.client_watched(),
        service.engine.running(jobs, [name] * len(jobs), unique=values["rid"] is not None) as records,
    ):
        if shape.stream:
            frames = _Frames(exchange, shape, choices)
            await streaming.send(exchange, records, frames.of, frames.closing())
            return
        async for place, record in records:
            if refusal := refused(record.done):
                raise refusal
            choices[place].add(record)
        name_seeds(exchange, [choices[0].seed])
        usage = usage_of([choices[0].usage], [choice.usage for choice in choices])
        await exchange.answer_json(shape.frame([choice.message() for choice in choices], usage))


@dataclass(frozen=True, slots=True)
class _Frames:
    """A stream's chunks: the role, one per record, why it ended, then usage if it was asked for."""

    exchange: Exchange
    shape: Shape
    choices: Sequence[ChatChoice]
    opened: set[int] = field(default_factory=set)

    def of(self, place: int, record: Record) -> Sequence[dict[str, Any]]:
        choice = self.choices[place]
        choice.add(record)
        if not streaming.says_something(record):
            return ()
        if not self.exchange.head_sent:
            name_seeds(self.exchange, [choice.seed])
        chunks = []
        if place not in self.opened:
            self.opened.add(place)
            chunks.append(choice.opening())
        if record.tokens or choice.has_delta:
            chunks.append(choice.take_delta())
        if record.done is not None:
            chunks.append(choice.closing())
        return [self._frame(choice, chunk) for chunk in chunks]

    def _frame(self, choice: ChatChoice, chunk: dict[str, Any]) -> dict[str, Any]:
        usage = usage_of([choice.usage], [choice.usage]) if self.shape.continuous_usage else None
        return self.shape.frame([chunk], usage)

    def closing(self) -> Iterator[dict[str, Any]]:
        if self.shape.include_usage:
            usage = usage_of([self.choices[0].usage], [choice.usage for choice in self.choices])
            yield self.shape.frame([], usage)
