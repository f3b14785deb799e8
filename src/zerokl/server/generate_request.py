"""/generate: a request body as jobs, prompt-major."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from zerokl.errors import InvalidRequest
from zerokl.server.fields import message, shown
from zerokl.server.grammars import grammar_of
from zerokl.server.job import Job, Prompt
from zerokl.server.prompts import Limits, check_ids, check_length, check_not_empty, encode_all
from zerokl.server.sampling import check_token_fields, native_stopping, sampling_of
from zerokl.server.validate import Values, check, check_sampling
from zerokl.tokenizer import Tokenizer
from zerokl.wire.messages import LogprobOptions

MAX_SEQUENCES = 4096
"""Prompts times n of one request."""


class Generate(Struct, frozen=True):
    """A checked request. Jobs and rids are prompt-major: prompt 0's n samples, then prompt 1's."""

    jobs: tuple[Job, ...]
    rids: tuple[str | None, ...]
    """None: the server names the answer."""
    n: int
    listed: bool
    """The answer is an array: a list was given, or n > 1."""
    stream: bool
    token_texts: bool
    prompt_ids: bool
    returns_logprobs: tuple[bool, ...]


async def parse(body: Values, limits: Limits, tokenizer: Tokenizer) -> Generate:
    """The request as jobs. Raises InvalidRequest at the first thing that is wrong."""
    values = check("generate", body)
    items, name, batch = _items(values)
    samplings = _samplings(values["sampling_params"], len(items))
    n = _number_of_samples(samplings)
    check_size(len(items), n)
    options = _logprob_options(values, len(items), n, limits)
    prompts = await _prompts(items, name, batch, limits, tokenizer)
    jobs = [
        _job(values, prompts[i], samplings[i], options[i], sample, limits)
        for i in range(len(prompts))
        for sample in range(n)
    ]
    return Generate(
        jobs=tuple(jobs),
        rids=_rids(values["rid"], len(items), n, batch),
        n=n,
        listed=batch or n > 1,
        stream=values["stream"],
        token_texts=values["return_text_in_logprobs"],
        prompt_ids=values["return_prompt_token_ids"],
        returns_logprobs=tuple(job.logprobs is not None for job in jobs),
    )


def _items(values: Values) -> tuple[list[Any], str, bool]:
    """(prompts, the key they came under, whether a list of prompts was given)."""
    text, ids = values["text"], values["input_ids"]
    if (text is None) == (ids is None):
        given = "both" if text is not None else "neither"
        raise InvalidRequest(message("one_prompt", given=given), param="text" if given == "both" else None)
    name, given_prompt = ("text", text) if text is not None else ("input_ids", ids)
    batch = isinstance(given_prompt, list) and (name == "text" or (bool(ids) and isinstance(ids[0], list)))
    items = given_prompt if batch else [given_prompt]
    check_not_empty(items, name, batch)
    return items, name, batch


def _samplings(given: Any, prompts: int) -> list[Values]:
    if isinstance(given, dict):
        return [check_sampling(given, "sampling_params")] * prompts
    _check_count("sampling_params", given, prompts)
    return [check_sampling(one, f"sampling_params[{i}]") for i, one in enumerate(given)]


def _number_of_samples(samplings: Sequence[Values]) -> int:
    n: int = samplings[0]["n"]
    for sampling in samplings:
        if sampling["n"] != n:
            raise InvalidRequest(message("n_differs", value=sampling["n"]), param="sampling_params.n")
    return n


def check_size(prompts: int, n: int) -> None:
    if prompts * n > MAX_SEQUENCES:
        raise InvalidRequest(message("batch", limit=MAX_SEQUENCES, prompts=prompts, n=n, total=prompts * n))


async def _prompts(items: list[Any], name: str, batch: bool, limits: Limits, tokenizer: Tokenizer) -> list[Prompt]:
    if name == "text":
        return await encode_all(items, name, tokenizer, limits.context)
    return [Prompt(check_ids(ids, f"{name}[{i}]" if batch else name, limits.vocab)) for i, ids in enumerate(items)]


class _Options(Struct, frozen=True):
    returns: bool
    start: int
    num_top: int
    ids: list[int]


def _logprob_options(values: Values, prompts: int, n: int, limits: Limits) -> list[_Options]:
    """One per prompt."""
    returns = _per_prompt("return_logprob", values, prompts, n)
    starts = _per_prompt("logprob_start_len", values, prompts, n)
    tops = _per_prompt("top_logprobs_num", values, prompts, n)
    ids = _ids_per_prompt(values["token_ids_logprob"], prompts, n, limits)
    return [_Options(*four) for four in zip(returns, starts, tops, ids, strict=True)]


def _per_prompt(name: str, values: Values, prompts: int, n: int) -> list[Any]:
    value = values[name]
    if not isinstance(value, list):
        return [value] * prompts
    _check_list(name, value, prompts, n)
    return value


def _ids_per_prompt(value: list[Any] | None, prompts: int, n: int, limits: Limits) -> list[list[int]]:
    name = "token_ids_logprob"
    if not value:
        return [[]] * prompts
    if not isinstance(value[0], list):
        return [check_ids(value, name, limits.vocab)] * prompts
    _check_list(name, value, prompts, n)
    return [check_ids(ids, f"{name}[{i}]", limits.vocab) for i, ids in enumerate(value)]


def _check_list(name: str, value: list[Any], prompts: int, n: int) -> None:
    if n > 1:
        raise InvalidRequest(message("per_prompt_n", name=name), param=name)
    _check_count(name, value, prompts)


def _check_count(name: str, value: list[Any], prompts: int) -> None:
    if len(value) != prompts:
        raise InvalidRequest(message("per_prompt_count", name=name, given=len(value), prompts=prompts), param=name)


def _job(values: Values, prompt: Prompt, sampling: Values, options: _Options, sample: int, limits: Limits) -> Job:
    prefix = "sampling_params."
    check_token_fields(sampling, prefix, limits)
    check_length(prompt, sampling["max_new_tokens"], limits)
    check_min(sampling["min_new_tokens"], sampling["max_new_tokens"], prefix + "min_new_tokens")
    if options.returns and options.start > len(prompt.ids):
        text = message("start_over", prompt=len(prompt.ids), value=options.start)
        raise InvalidRequest(text, param="logprob_start_len")
    return Job(
        prompt=prompt,
        sampling=sampling_of(sampling, sampling["sampling_seed"], sample),
        stopping=native_stopping(sampling),
        max_new_tokens=sampling["max_new_tokens"],
        min_new_tokens=sampling["min_new_tokens"],
        logprobs=LogprobOptions(options.start, options.num_top, options.ids) if options.returns else None,
        skip_special_tokens=sampling["skip_special_tokens"],
        spaces_between_special_tokens=sampling["spaces_between_special_tokens"],
        stream_interval=sampling["stream_interval"] if values["stream"] else 0,
        priority=values["priority"],
        cache_salt=values["cache_salt"],
        grammar=grammar_of(sampling, prefix),
    )


def check_min(minimum: int, maximum: int | None, name: str) -> None:
    if maximum is not None and minimum > maximum:
        raise InvalidRequest(message("min_over_max", max_new=maximum, value=minimum), param=name)


def _rids(given: str | list[str] | None, prompts: int, n: int, batch: bool) -> tuple[str | None, ...]:
    """A string names a lone answer, or prefixes those of a batch; a list names prompts (and prefixes their samples)."""
    if given is None:
        return (None,) * (prompts * n)
    if isinstance(given, str):
        total = prompts * n
        return (given,) if not batch and n == 1 else tuple(f"{given}_{i}" for i in range(total))
    _check_count("rid", given, prompts)
    rids = tuple(given) if n == 1 else tuple(f"{rid}_{j}" for rid in given for j in range(n))
    if len(set(rids)) < len(rids):
        twice = next(rid for i, rid in enumerate(rids) if rid in rids[:i])
        raise InvalidRequest(message("rid_duplicate", value=shown(twice)), param="rid")
    return rids
