"""What /v1/completions and /v1/chat/completions share: sampling, usage, the frame around choices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from zerokl.errors import InvalidRequest
from zerokl.server.fields import message, shown
from zerokl.server.generate_request import check_min
from zerokl.server.job import Job, Prompt
from zerokl.server.prompts import Limits, check_length
from zerokl.server.sampling import check_token_fields, sampling_of, stopping_of
from zerokl.server.service import Service
from zerokl.server.validate import Values
from zerokl.wire.messages import Done, First, Grammar, LogprobOptions


@dataclass(frozen=True, slots=True)
class Shape:
    """How the answer looks, whatever is in it."""

    name: str
    """Id of the answer."""
    object: str
    model: str
    created: int
    fingerprint: str
    stream: bool
    include_usage: bool
    continuous_usage: bool
    token_ids: bool
    tokens_as_ids: bool

    def frame(self, choices: Sequence[Any], usage: dict[str, Any] | None) -> dict[str, Any]:
        return {
            "id": self.name,
            "object": self.object,
            "created": self.created,
            "model": self.model,
            "choices": choices,
            "usage": usage,
            "system_fingerprint": self.fingerprint,
        }


def shape_of(service: Service, values: Values, name: str, kind: str) -> Shape:
    options = values["stream_options"] or {}
    return Shape(
        name=name,
        object=kind,
        model=values["model"] or service.model_name,
        created=service.clock.now(),
        fingerprint=service.engine.fingerprint,
        stream=values["stream"],
        include_usage=options.get("include_usage", False),
        continuous_usage=options.get("continuous_usage_stats", False),
        token_ids=values["return_token_ids"],
        tokens_as_ids=values["return_tokens_as_token_ids"],
    )


def check_model(service: Service, values: Values) -> None:
    """With --strict-model another model's name is 404; without, clients may send what they like."""
    asked = values["model"]
    if service.config.strict_model and asked is not None and asked != service.model_name:
        raise no_such_model(service, asked)


def no_such_model(service: Service, asked: str) -> InvalidRequest:
    text = message("model_not_found", value=shown(asked), model=shown(service.model_name))
    return InvalidRequest(text, param="model", code="model_not_found", status=404)


def jobs_of(
    values: Values,
    prompt: Prompt,
    max_tokens: int | None,
    logprobs: LogprobOptions | None,
    limits: Limits,
    grammar: Grammar | None,
) -> list[Job]:
    """One prompt's n samples. `values` are of the common table."""
    check_token_fields(values, "", limits)
    check_length(prompt, max_tokens, limits)
    check_min(values["min_tokens"], max_tokens, "min_tokens")
    return [
        Job(
            prompt=prompt,
            sampling=sampling_of(values, values["seed"], sample),
            stopping=stopping_of(values),
            max_new_tokens=max_tokens,
            min_new_tokens=values["min_tokens"],
            logprobs=logprobs,
            skip_special_tokens=values["skip_special_tokens"],
            stream_interval=1 if values["stream"] else 0,
            priority=values["priority"],
            cache_salt=values["cache_salt"],
            grammar=grammar,
        )
        for sample in range(values["n"])
    ]


def finish_of(done: Done | None) -> tuple[str | None, int | str | None]:
    """(finish_reason, matched_stop)"""
    if done is None:
        return None, None
    matched = done.matched_id if done.matched_text is None else done.matched_text
    return done.kind, matched if done.kind == "stop" else None


@dataclass(slots=True)
class Usage:
    """Token counts of one sequence; a prompt counts once, whatever n is."""

    prompt_tokens: int
    cached_tokens: int = 0
    completion_tokens: int = 0

    def begin(self, first: First) -> None:
        self.prompt_tokens = first.prompt_tokens
        self.cached_tokens = first.cached_tokens


def usage_of(prompts: Iterable[Usage], samples: Iterable[Usage]) -> dict[str, Any]:
    """`prompts`: one per prompt; `samples`: all."""
    counted = list(prompts)
    prompt_tokens = sum(one.prompt_tokens for one in counted)
    completion_tokens = sum(one.completion_tokens for one in samples)
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(one.cached_tokens for one in counted)},
        "completion_tokens_details": None,
    }
