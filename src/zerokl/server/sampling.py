"""Checked values as the wire's parameters; the two API families name some of them differently."""

from __future__ import annotations

from msgspec.structs import replace

from zerokl.server.prompts import Limits, check_bias, check_ids
from zerokl.server.validate import Values
from zerokl.wire.messages import Bias, Sampling, Stopping

GREEDY_BELOW = 1e-6
MAX_STOP_ID = 2**31 - 1
"""Stop ids may be another model's: what this one doesn't have can't be drawn, so it never stops."""


def sampling_of(values: Values, seed: int | None, sample: int) -> Sampling:
    """Sample number `sample` of one prompt; the same noise wherever the prompt stands in a batch."""
    temperature = values["temperature"]
    return Sampling(
        temperature=0.0 if temperature is not None and temperature < GREEDY_BELOW else temperature,
        top_p=values["top_p"],
        top_k=values["top_k"],
        min_p=values["min_p"],
        frequency_penalty=values["frequency_penalty"],
        presence_penalty=values["presence_penalty"],
        repetition_penalty=values["repetition_penalty"],
        seed=seed,
        sample=sample,
        logit_bias=[Bias(token_id, bias) for token_id, bias in values["logit_bias"] or ()],
    )


def stopping_of(values: Values) -> Stopping:
    return Stopping(
        strings=values["stop"],
        token_ids=values["stop_token_ids"],
        regexes=values["stop_regex"],
        ignore_eos=values["ignore_eos"],
        no_trim=values["no_stop_trim"],
    )


def native_stopping(values: Values) -> Stopping:
    """SGLang's ignore_eos is about every id that stops, those of the request too; in OpenAI's dialect it is not."""
    stopping = stopping_of(values)
    return replace(stopping, token_ids=[]) if stopping.ignore_eos else stopping


def check_token_fields(values: Values, prefix: str, limits: Limits) -> None:
    """The ids inside sampling parameters are ids of this vocabulary."""
    check_ids(values["stop_token_ids"], prefix + "stop_token_ids", MAX_STOP_ID + 1)
    check_bias(values["logit_bias"] or (), prefix + "logit_bias", limits)
