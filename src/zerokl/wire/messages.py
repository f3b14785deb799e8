"""Messages between a frontend and the engine. Written by tools/generate_wire.py: change schema.toml.

Each is a msgpack array in field order; `Span` is a raw column after the header, see `wire/frames.py`.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, field

U32 = Annotated[int, Meta(ge=0, le=4294967295)]
U64 = Annotated[int, Meta(ge=0)]

PROTOCOL = 1
MAX_TO_ENGINE_BYTES = 268435456
MAX_TO_FRONTEND_BYTES = 1073741824


class Span(Struct, frozen=True, array_like=True, gc=False):
    """A column's place in the bytes after the header."""

    offset: U32 = 0
    size: U32 = 0


class Bias(Struct, frozen=True, array_like=True, gc=False):
    """Added to the logit of one id."""

    id: U32
    bias: float


class Sampling(Struct, frozen=True, array_like=True, gc=False):
    """How tokens are drawn; an absent value is resolved in the engine (the model's own default, or none)."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    """-1: all."""
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    """Absent: a hash of the server's default seed and the prompt."""
    sample: U32 = 0
    """Which of n samples: sample j of one request draws from (seed, j)."""
    logit_bias: list[Bias] = field(default_factory=list)


class Stopping(Struct, frozen=True, array_like=True, gc=False):
    """When a request ends, besides its length."""

    strings: list[str] = field(default_factory=list)
    """The one that completes earliest wins; ties by this order."""
    token_ids: list[U32] = field(default_factory=list)
    regexes: list[str] = field(default_factory=list)
    ignore_eos: bool = False
    no_trim: bool = False
    """The text keeps what matched."""


class LogprobOptions(Struct, frozen=True, array_like=True, gc=False):
    """Which logprobs are computed. The request's own tokens' always are."""

    start: int = -1
    """First prompt position with an entry (which is null); -1: none."""
    num_top: U32 = 0
    ids: list[U32] = field(default_factory=list)


class Grammar(Struct, frozen=True, array_like=True, gc=False):
    """What the output must look like. One that does not compile is refused with the first record."""

    kind: str
    """json_schema, regex, ebnf or structural_tag."""
    source: str


class First(Struct, frozen=True, array_like=True, gc=False):
    """What is known once, with a request's first record."""

    row: U32
    """The record's place in this step."""
    seed: int
    prompt_tokens: U32
    cached_tokens: U32
    leading_nulls: U32 = 0
    """Prompt positions before the first score that have an entry, which is null."""


class Done(Struct, frozen=True, array_like=True, gc=False):
    """How a request ended; its record is its last."""

    row: U32
    """The record's place in this step."""
    kind: str
    """stop, length or abort."""
    completion_tokens: U32 = 0
    """All of the request, a matched stop token included."""
    matched_id: int | None = None
    """The stop token."""
    matched_text: str | None = None
    """The stop string, or the source of the regex."""
    message: str = ""
    status: U32 | None = None
    """HTTP status, where a refusal or failure ended it."""
    code: str | None = None
    """Error code, as context_length_exceeded."""
    param: str | None = None
    """The parameter at fault."""


class Submit(Struct, frozen=True, array_like=True, gc=False):
    """One sequence to continue. n samples are n submits with one prompt; the cache shares it."""

    rid: U64
    """Chosen by the frontend, never reused on one connection while live."""
    prompt: Span
    sampling: Sampling
    stopping: Stopping
    max_new_tokens: U32 | None = None
    """0: score only. Absent: up to the context's end."""
    min_new_tokens: U32 = 0
    """Nothing but an abort ends it before."""
    logprobs: LogprobOptions | None = None
    """Absent: none."""
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    """Kept for the API; fast tokenizers never put any."""
    stream_interval: U32 = 1
    """Records at token 1, then every k. 0: one record, at the end."""
    priority: int = 0
    """Higher first; equal: by arrival."""
    cache_salt: str = ""
    """Prefixes are shared only at equal salt."""
    use_cache: bool = True
    """False: neither reads nor fills the prefix cache."""
    grammar: Grammar | None = None


class Abort(Struct, frozen=True, array_like=True, gc=False):
    """Ends a request with finish kind abort and the tokens so far. Unknown or finished: nothing happens."""

    rid: U64
    message: str = "Aborted"


class Control(Struct, frozen=True, array_like=True, gc=False):
    """A rare call, answered once: flush_cache, server_info, abort_all, shutdown."""

    call: U64
    """Names the answer; chosen by the frontend."""
    name: str
    args: str = "{}"
    """A JSON object."""


class Hello(Struct, frozen=True, array_like=True, gc=False):
    """Sent once, at connect. A frontend hangs up on another protocol number."""

    protocol: U32
    fingerprint: str
    vocab: U32
    """Ids run from 0 to vocab - 1."""
    context: U32
    """Longest prompt plus output."""
    eos_ids: list[U32] = field(default_factory=list)
    bos_id: U32 | None = None
    max_running: U32 = 0
    max_queued: U32 = 0
    """Submits past this many waiting are refused."""
    pool_tokens: U32 = 0
    """Token slots of the cache."""
    page_size: U32 = 0
    default_seed: int = 0
    sampling_defaults: Sampling | None = None
    """What absent values become."""
    facts: str = "{}"
    """A JSON object about the model, for model_info and server_info."""


class Step(Struct, frozen=True, array_like=True, gc=False):
    """What one engine step gave: a row per request that has a record. Without logprobs their columns are empty."""

    step: U64
    rids: Span
    num_tokens: Span
    """Per row."""
    tokens: Span
    """Rows joined."""
    num_text_bytes: Span
    """Per row."""
    text: Span
    """UTF-8, rows joined."""
    num_scores: Span
    """Per row: logprobs of prompt tokens. They precede the row's others."""
    num_logprobs: Span
    """Per row: logprobs of new tokens."""
    num_top: Span
    """Per row."""
    num_ids: Span
    """Per row."""
    chosen: Span
    """Of the token itself."""
    top_ids: Span
    """Highest first, ties by lower id."""
    top: Span
    ids: Span
    """In the order asked."""
    firsts: list[First] = field(default_factory=list)
    dones: list[Done] = field(default_factory=list)


class Answer(Struct, frozen=True, array_like=True, gc=False):
    """To one Control."""

    call: U64
    ok: bool
    body: str = "{}"
    """A JSON object; if not ok, {"message": why}."""


class Heartbeat(Struct, frozen=True, array_like=True, gc=False):
    """Every second, whatever the loop does: how long it has been in one step, and figures of its last second."""

    step: U64
    running: U32
    waiting: U32
    draining: bool = False
    busy_ms: U32 = 0
    """How long the step has taken that runs now; 0: none runs."""
    leased_pages: U32 = 0
    """In use by requests."""
    cached_pages: U32 = 0
    """Kept for prefixes; free for whoever needs them."""
    num_pages: U32 = 0
    prefill_tokens: U64 = 0
    """This and what follows counts from the engine's start."""
    sampled_tokens: U64 = 0
    lookup_tokens: U64 = 0
    """Tokens that the prefix cache was asked for."""
    hit_tokens: U64 = 0
    """Tokens that it had."""
    preemptions: U64 = 0
    stopped_limit: U64 = 0
    """Lookups of prefixes, by what kept the match from being longer: the request."""
    stopped_full: U64 = 0
    """No more is cached."""
    stopped_sliding: U64 = 0
    """Keys of a window are gone."""
    stopped_state: U64 = 0
    """There is no state checkpoint."""
    lost_tokens: U64 = 0
    """Tokens that ran again though their keys were cached, for want of the last two."""


ToEngine = Submit | Abort | Control
ToFrontend = Hello | Step | Answer | Heartbeat
TO_ENGINE: dict[int, type[ToEngine]] = {
    1: Submit,
    2: Abort,
    3: Control,
}
TO_FRONTEND: dict[int, type[ToFrontend]] = {
    17: Hello,
    18: Step,
    19: Answer,
    20: Heartbeat,
}
KINDS: dict[type[Struct], int] = {
    Submit: 1,
    Abort: 2,
    Control: 3,
    Hello: 17,
    Step: 18,
    Answer: 19,
    Heartbeat: 20,
}
