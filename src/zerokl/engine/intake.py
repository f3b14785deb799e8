"""What a client asked, resolved: a `Submit` and its prompt become a `Request` for the scheduler and a `RequestText`.

Everything that was left open is decided here and only here: sampling defaults, the seed, end-of-sequence ids, how long
it may become. The server and `LLM` both come through, so both refuse the same with the same words.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Protocol

from msgspec import Struct, field

from zerokl.engine.grammar import GrammarMask, Grammars
from zerokl.engine.pattern import MAX_STATES, Pattern
from zerokl.engine.seeds import seed_of
from zerokl.engine.text import RequestText, Stream, TextOptions
from zerokl.engine.vocabulary import Spelt
from zerokl.errors import InvalidRequest
from zerokl.types import LogprobSpec, Request, RequestId, SamplingParams
from zerokl.wire.messages import First, LogprobOptions, Sampling, Submit

MAX_STOPS = 32
MAX_STOP_CHARS = 1000
MAX_TOP = 1024
GREEDY_BELOW = 1e-6
"""Temperatures below divide logits into infinities; they mean "the likeliest", so they are that."""

RANGES: Mapping[str, tuple[float, float]] = {
    "temperature": (0.0, float("inf")),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "frequency_penalty": (-2.0, 2.0),
    "presence_penalty": (-2.0, 2.0),
    "repetition_penalty": (0.0, 2.0),
}
POSITIVE = ("top_p", "repetition_penalty")


class TextSource(Spelt, Protocol):
    """The part of a `Tokenizer` that the text side needs."""

    def token_id(self, entry: str) -> int | None:
        """The id of an entry as it is spelt in the vocabulary."""

    def text(self, output: Sequence[int], prompt: Sequence[int] = (), *, skip_special_tokens: bool = True) -> str:
        """The whole text of ids."""

    def stream(self, prompt: Sequence[int] = (), *, skip_special_tokens: bool = True) -> Stream:
        """For the output that follows this prompt."""


class Served(Struct, frozen=True):
    """What this engine serves, as far as a request depends on it."""

    tokenizer: TextSource
    vocab: int
    context: int
    eos_ids: frozenset[int] = frozenset()
    default_seed: int = 0
    defaults: Sampling = field(default_factory=Sampling)
    """Sampling values of requests that leave them open; what is absent here too is neutral."""
    media_ids: Mapping[int, str] = field(default_factory=dict)
    """Prompt ids that stand for what only the model's other parts could read: an image, audio."""


class Intake:
    """Makes requests, and numbers them. Safe to call from any thread."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self._numbers = itertools.count(1)
        self._grammars = Grammars(served.tokenizer, served.vocab, served.eos_ids)

    def take(self, submit: Submit, prompt: Sequence[int]) -> tuple[Request, RequestText]:
        """Raises InvalidRequest, naming the parameter, its value and what is allowed.

        A grammar (`RequestText.mask`) is not compiled yet: that takes long, so it is up to the caller, and so are
        its errors. Where it is complete it ends the request, as an end-of-sequence token that is never ignored.
        """
        served = self.served
        check_ids("prompt", prompt, served.vocab)
        check_media("prompt", prompt, served.media_ids)
        max_new_tokens = self._max_new_tokens(submit, len(prompt))
        if not -(2**31) <= submit.priority < 2**31:
            raise InvalidRequest(f"priority is {submit.priority}: 32 bits are allowed", param="priority")
        sampling = self._sampling(submit.sampling, prompt)
        stop_ids = self._stop_ids(submit)
        request = Request(
            request_id=RequestId(next(self._numbers)),
            prompt=prompt,
            max_new_tokens=max_new_tokens,
            sampling=sampling,
            min_new_tokens=0 if submit.grammar else submit.min_new_tokens,  # the mask sees to it
            stop_token_ids=stop_ids,
            logprobs=self._logprob_spec(submit.logprobs, len(prompt)),
            logprob_start=submit.logprobs.start if submit.logprobs else -1,
            priority=submit.priority,
            cache_salt=submit.cache_salt,
            use_cache=submit.use_cache,
        )
        mask = GrammarMask(self._grammars, submit.grammar, stop_ids, submit.min_new_tokens) if submit.grammar else None
        return request, self._text(submit, prompt, sampling.seed, mask)

    def _max_new_tokens(self, submit: Submit, prompt_tokens: int) -> int:
        context = self.served.context
        room = context - prompt_tokens
        wanted = submit.max_new_tokens
        if prompt_tokens == 0:
            raise InvalidRequest("the prompt is empty", param="prompt")
        if room < 0 or (room == 0 and wanted != 0):
            raise InvalidRequest(
                f"the prompt has {prompt_tokens} tokens, the context length is {context}",
                param="prompt",
                code="context_length_exceeded",
            )
        if wanted is not None and wanted > room:
            raise InvalidRequest(
                f"{prompt_tokens} prompt tokens and max_new_tokens {wanted} make {prompt_tokens + wanted}, "
                f"the context length is {context}",
                param="max_new_tokens",
                code="context_length_exceeded",
            )
        resolved = room if wanted is None else wanted
        if submit.min_new_tokens > resolved:
            raise InvalidRequest(
                f"min_new_tokens is {submit.min_new_tokens}, max_new_tokens {resolved}", param="min_new_tokens"
            )
        return resolved

    def _sampling(self, asked: Sampling, prompt: Sequence[int]) -> SamplingParams:
        defaults, neutral = self.served.defaults, SamplingParams()
        values: dict[str, float] = {}
        for name in RANGES:
            value = first_given(getattr(asked, name), getattr(defaults, name), getattr(neutral, name))
            check_range(name, value)
            values[name] = float(value)
        if values["temperature"] < GREEDY_BELOW:
            values["temperature"] = 0.0
        top_k = int(first_given(asked.top_k, defaults.top_k, neutral.top_k))
        if top_k != -1 and not 1 <= top_k < 2**31:
            raise InvalidRequest(f"top_k is {top_k}: -1 (all) or at least 1 is allowed", param="top_k")
        check_ids("logit_bias", [bias.id for bias in asked.logit_bias], self.served.vocab)
        for bias in asked.logit_bias:
            if not -1e6 <= bias.bias <= 1e6:
                raise InvalidRequest(
                    f"logit_bias of {bias.id} is {bias.bias}: -1e6 to 1e6 are allowed", param="logit_bias"
                )
        seed = seed_of(self.served.default_seed, prompt) if asked.seed is None else asked.seed
        if not -(2**63) <= seed < 2**63:
            raise InvalidRequest(f"the seed is {seed}: 64 bits with sign are allowed", param="seed")
        logit_bias = tuple(sorted((bias.id, float(bias.bias)) for bias in asked.logit_bias))
        return SamplingParams(**values, top_k=top_k, logit_bias=logit_bias, seed=seed, stream=asked.sample)

    def _stop_ids(self, submit: Submit) -> frozenset[int]:
        """Ids of another model's vocabulary are never drawn; clients send them, and they are left out."""
        ignored = submit.stopping.ignore_eos and submit.grammar is None
        own = frozenset[int]() if ignored else self.served.eos_ids
        return own | frozenset(token for token in submit.stopping.token_ids if token < self.served.vocab)

    def _logprob_spec(self, asked: LogprobOptions | None, prompt_tokens: int) -> LogprobSpec | None:
        if asked is None:
            return None
        if not -1 <= asked.start <= prompt_tokens:
            raise InvalidRequest(
                f"logprob_start is {asked.start}: -1 to {prompt_tokens} (the prompt's tokens) are allowed",
                param="logprob_start",
            )
        most = min(MAX_TOP, self.served.vocab)
        for name, count in (("top_logprobs", asked.num_top), ("token_ids_logprob", len(asked.ids))):
            if count > most:
                raise InvalidRequest(f"{name} asks for {count}: at most {most} are allowed", param=name)
        check_ids("token_ids_logprob", asked.ids, self.served.vocab)
        return LogprobSpec(asked.num_top, tuple(asked.ids))

    def _text(self, submit: Submit, prompt: Sequence[int], seed: int, mask: GrammarMask | None) -> RequestText:
        stopping, logprobs, tokenizer = submit.stopping, submit.logprobs, self.served.tokenizer
        check_stops("stop", stopping.strings)
        options = TextOptions(
            stop=tuple(stopping.strings),
            patterns=patterns_of(stopping.regexes),
            stop_specials=skipped_names(tokenizer, stopping.strings) if submit.skip_special_tokens else {},
            no_trim=stopping.no_trim,
            min_new_tokens=submit.min_new_tokens,
            stream_interval=submit.stream_interval,
        )
        stream = tokenizer.stream(prompt, skip_special_tokens=submit.skip_special_tokens)
        leading_nulls = int(logprobs is not None and 0 <= logprobs.start < len(prompt))
        return RequestText(submit.rid, stream, options, First(0, seed, len(prompt), 0, leading_nulls), mask)


def skipped_names(tokenizer: TextSource, strings: Sequence[str]) -> dict[int, str]:
    """Special tokens among the stop strings: they have no text that could match, so their ids must."""
    ids = ((tokenizer.token_id(string), string) for string in strings)
    return {token: string for token, string in ids if token is not None and tokenizer.text((token,)) == ""}


def patterns_of(sources: Sequence[str]) -> tuple[Pattern, ...]:
    """All compiled; together no larger than one may be, because each character is shown to all."""
    check_stops("stop_regex", sources)
    patterns = tuple(compiled(source) for source in sources)
    states = sum(len(pattern.states) for pattern in patterns)
    if states > MAX_STATES:
        raise InvalidRequest(f"stop_regex needs {states} states: at most {MAX_STATES} are taken", param="stop_regex")
    return patterns


compiled = lru_cache(maxsize=256)(Pattern.compiled)


def first_given(*values: float | None) -> float:
    return next(value for value in values if value is not None)


def check_range(name: str, value: float) -> None:
    low, high = RANGES[name]
    if not low <= value <= high or value == float("inf") or (value == 0 and name in POSITIVE):
        above = f"above {low:g}" if name in POSITIVE else f"at least {low:g}"
        below = "finite" if high == float("inf") else f"at most {high:g}"
        raise InvalidRequest(f"{name} is {value}: it must be {above} and {below}", param=name)


def check_ids(name: str, ids: Sequence[int], vocab: int) -> None:
    """All of them in range; the first that is not is named with its position."""
    if ids and not (min(ids) >= 0 and max(ids) < vocab):
        index, token = next((index, token) for index, token in enumerate(ids) if not 0 <= token < vocab)
        raise InvalidRequest(f"{name}[{index}] is {token}: ids run from 0 to {vocab - 1}", param=name)


def check_media(name: str, ids: Sequence[int], media_ids: Mapping[int, str]) -> None:
    for token, kind in media_ids.items():
        if token in ids:
            place = f"{name}[{ids.index(token)}] is {token}"
            raise InvalidRequest(f"{place}, which stands for {kind} input: only text is supported", param=name)


def check_stops(name: str, stops: Sequence[str]) -> None:
    if len(stops) > MAX_STOPS:
        raise InvalidRequest(f"{name} has {len(stops)} entries: at most {MAX_STOPS} are allowed", param=name)
    for stop in stops:
        if not 0 < len(stop) <= MAX_STOP_CHARS:
            raise InvalidRequest(
                f"{name} has an entry of {len(stop)} characters: 1 to {MAX_STOP_CHARS} are allowed", param=name
            )
