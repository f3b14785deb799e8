"""What may be asked of one request."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
import orjson

from zerokl.errors import InvalidRequest
from zerokl.wire.messages import U32, Bias, Grammar, LogprobOptions, Sampling, Span, Stopping, Submit


class Params(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Names and meaning as in `/generate`'s sampling_params; ranges are checked where the server's are, by the engine.

    Sampling values that are left out are the model's own defaults, or neutral.
    """

    max_new_tokens: U32 | None = 128
    """None: up to the end of the context. 0: only score the prompt."""
    min_new_tokens: U32 = 0
    temperature: float | None = None
    """0: the likeliest token."""
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    """None: a hash of the default seed and the prompt, so that even this repeats exactly."""
    sample: U32 = 0
    """Which of the samples that one seed has."""
    stop: str | list[str] = []
    stop_token_ids: list[int] = []
    stop_regex: str | list[str] = []
    ignore_eos: bool = False
    no_stop_trim: bool = False
    skip_special_tokens: bool = True
    json_schema: str | dict[str, Any] | None = None
    """The output must fit it; of this and the next two at most one."""
    regex: str | None = None
    ebnf: str | None = None
    """GBNF or Lark."""
    logprobs: bool = False
    """Of the new tokens."""
    top_logprobs: U32 = 0
    """How many of the likeliest tokens to show at each position."""
    token_ids_logprob: list[int] = []
    """Ids whose logprob to show at each position."""
    logprob_start: int = -1
    """From which prompt position on to score the prompt as well; -1: not at all."""
    cache_salt: str = ""
    priority: int = 0

    @property
    def wants_logprobs(self) -> bool:
        return self.logprobs or self.top_logprobs > 0 or bool(self.token_ids_logprob) or self.logprob_start >= 0

    def submit(self, stream_interval: int) -> Submit:
        """As the wire says it; the prompt goes beside."""
        return Submit(
            rid=0,
            prompt=Span(),
            sampling=self._sampling(),
            stopping=Stopping(
                listed(self.stop), self.stop_token_ids, listed(self.stop_regex), self.ignore_eos, self.no_stop_trim
            ),
            max_new_tokens=self.max_new_tokens,
            min_new_tokens=self.min_new_tokens,
            logprobs=self._logprobs() if self.wants_logprobs else None,
            skip_special_tokens=self.skip_special_tokens,
            stream_interval=stream_interval,
            priority=self.priority,
            cache_salt=self.cache_salt,
            grammar=self._grammar(),
        )

    def _grammar(self) -> Grammar | None:
        schema = orjson.dumps(self.json_schema).decode() if isinstance(self.json_schema, dict) else self.json_schema
        sources = {"json_schema": schema, "regex": self.regex, "ebnf": self.ebnf}
        given = [Grammar(kind, source) for kind, source in sources.items() if source is not None]
        if len(given) > 1:
            raise InvalidRequest(f"at most one grammar: {' and '.join(one.kind for one in given)}", param=given[1].kind)
        return given[0] if given else None

    def _sampling(self) -> Sampling:
        return Sampling(
            self.temperature,
            self.top_p,
            self.top_k,
            self.min_p,
            self.frequency_penalty,
            self.presence_penalty,
            self.repetition_penalty,
            self.seed,
            self.sample,
            [Bias(token, bias) for token, bias in self.logit_bias.items()],
        )

    def _logprobs(self) -> LogprobOptions:
        return LogprobOptions(self.logprob_start, self.top_logprobs, self.token_ids_logprob)


def params_of(given: Params | Mapping[str, Any] | None, more: Mapping[str, Any]) -> Params:
    """Both together, keywords over `given`. Raises InvalidRequest for an unknown name or a wrong type."""
    if isinstance(given, Params):
        given = msgspec.structs.asdict(given)
    values = {**(given or {}), **more}
    for name in values:
        if name not in Params.__struct_fields__:
            import difflib  # 1 ms of each start

            nearest = difflib.get_close_matches(name, Params.__struct_fields__, n=1, cutoff=0.0)[0]
            raise InvalidRequest(f"unknown parameter {name!r}; nearest: {nearest}", param=name)
    try:
        return msgspec.convert(values, Params)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at ")  # "Expected `float`, got `str` - at `$.temperature`"
        name = re.sub(r"^`\$\.?|`$", "", where)
        raise InvalidRequest(f"{name or 'a parameter'}: {what[0].lower()}{what[1:]}", param=name or None) from None


def listed(one_or_more: str | list[str]) -> list[str]:
    return [one_or_more] if isinstance(one_or_more, str) else one_or_more
