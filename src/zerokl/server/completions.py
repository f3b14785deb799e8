"""/v1/completions: prompts as text or ids, n samples each, echo and scoring."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from zerokl.errors import InvalidRequest
from zerokl.server import streaming
from zerokl.server.completions_body import CompletionChoice
from zerokl.server.exchange import Exchange
from zerokl.server.fields import message
from zerokl.server.generate_request import check_size
from zerokl.server.grammars import openai_grammar
from zerokl.server.job import Job, Prompt
from zerokl.server.openai_common import Shape, check_model, jobs_of, shape_of, usage_of
from zerokl.server.prompts import Limits, check_ids, check_not_empty, encode_all
from zerokl.server.seeds import name_seeds, name_stream_seeds
from zerokl.server.service import Service, refused
from zerokl.server.tokens import id_text
from zerokl.server.validate import Values, check
from zerokl.wire.messages import LogprobOptions
from zerokl.wire.records import Record


async def completions(service: Service, exchange: Exchange) -> None:
    body = await exchange.json()
    limits = service.engine.limits
    values = check("completions", body)
    _check(service, values)
    prompts = await _prompts(service, values["prompt"], values["n"], limits)
    jobs = _jobs(values, prompts, limits)
    [name] = service.names("cmpl-", [values["rid"]])
    shape = shape_of(service, values, name, "text_completion")
    choices = _choices(service, values, shape, jobs)
    async with (
        exchange.client_watched(),
        service.engine.running(jobs, [name] * len(jobs), unique=values["rid"] is not None) as records,
    ):
        if shape.stream:
            frames = _Frames(exchange, shape, jobs, choices, values["n"])
            await streaming.send(exchange, records, frames.of, frames.closing())
            return
        async for place, record in records:
            if refusal := refused(record.done):
                raise refusal
            choices[place].add(record)
        name_seeds(exchange, [choice.seed for choice in choices[:: values["n"]]])
        usage = usage_of([c.usage for c in choices[:: values["n"]]], [c.usage for c in choices])
        await exchange.answer_json(shape.frame([choice.take() for choice in choices], usage))


def _check(service: Service, values: Values) -> None:
    """What the table can't say."""
    check_model(service, values)
    n, best_of, limit = values["n"], values["best_of"], service.config.max_logprobs
    if best_of is not None and best_of != n:
        raise InvalidRequest(message("best_of", n=n, value=best_of), param="best_of", code="unsupported_value")
    if values["suffix"] not in (None, ""):
        raise InvalidRequest(message("no_suffix"), param="suffix", code="unsupported_value")
    if values["logprobs"] is not None and values["logprobs"] > limit:
        text = message("max_logprobs", name="logprobs", limit=limit, value=values["logprobs"])
        raise InvalidRequest(text, param="logprobs")


async def _prompts(service: Service, given: Any, n: int, limits: Limits) -> list[Prompt]:
    """Four forms: a text, texts, ids, lists of ids."""
    batch = isinstance(given, list) and bool(given) and isinstance(given[0], str | list)
    items = given if batch else [given]
    check_not_empty(items, "prompt", batch)
    check_size(len(items), n)
    if isinstance(items[0], str):
        return await encode_all(items, "prompt", service.tokenizer, limits.context)
    return [Prompt(check_ids(ids, f"prompt[{i}]" if batch else "prompt", limits.vocab)) for i, ids in enumerate(items)]


def _jobs(values: Values, prompts: Sequence[Prompt], limits: Limits) -> list[Job]:
    """Prompt-major. Unset sampling values are OpenAI's defaults here, not the model's."""
    values = values | {name: default for name, default in _DEFAULTS.items() if values[name] is None}
    logprobs = None
    if values["logprobs"] is not None:
        logprobs = LogprobOptions(start=0 if values["echo"] else -1, num_top=values["logprobs"])
    common = (values["max_tokens"], logprobs, limits, openai_grammar(values))
    return [job for prompt in prompts for job in jobs_of(values, prompt, *common)]


_DEFAULTS = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}


def _choices(service: Service, values: Values, shape: Shape, jobs: Sequence[Job]) -> list[CompletionChoice]:
    token_text = id_text if shape.tokens_as_ids else service.tokenizer.token_text

    def echo(prompt: Prompt) -> str | None:
        if not values["echo"]:
            return None
        return prompt.text if prompt.text is not None else service.tokenizer.decode(list(prompt.ids))

    return [
        CompletionChoice(job, index, echo(job.prompt), token_text, shape.token_ids) for index, job in enumerate(jobs)
    ]


@dataclass(frozen=True, slots=True)
class _Frames:
    """A stream's chunks: one per record, then usage if it was asked for."""

    exchange: Exchange
    shape: Shape
    jobs: Sequence[Job]
    choices: Sequence[CompletionChoice]
    n: int

    def of(self, place: int, record: Record) -> Sequence[dict[str, Any]]:
        choice = self.choices[place]
        choice.add(record)
        if not streaming.says_something(record):
            return ()
        if not self.exchange.head_sent:
            name_stream_seeds(self.exchange, self.jobs, self.n, choice.seed)
        usage = usage_of([choice.usage], [choice.usage]) if self.shape.continuous_usage else None
        return (self.shape.frame([choice.take()], usage),)

    def closing(self) -> Iterator[dict[str, Any]]:
        if self.shape.include_usage:
            usage = usage_of([c.usage for c in self.choices[:: self.n]], [c.usage for c in self.choices])
            yield self.shape.frame([], usage)
