"""What two folders share: frozen, made of integers, strings and raw bytes, so that policy can hold it without numpy.

    Request ──▶ scheduler ──▶ StepPlan (Segments) ──▶ runner ──▶ StepResult ──▶ scheduler ──▶ Progress

A column of logprobs is little-endian float32 in a `bytes`: exact, cheap to join and to send, and read with
`memoryview(column).cast("f")`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NewType, Protocol

from msgspec import Struct, field

RequestId = NewType("RequestId", int)
PageId = NewType("PageId", int)
StateSlot = NewType("StateSlot", int)
"""Where the states of all state layers of one sequence lie: live slots come first, checkpoints after them."""

ZERO_STATE = StateSlot(-1)
"""The state before position 0: all zeros, and no slot is read."""

PENDING_TOKEN = -1
"""Stands in a plan for the token that the previous, not yet committed, step samples for the same request."""


class SamplingParams(Struct, frozen=True):
    """How one next token is drawn. Every field is resolved: no None that means "the server's default".

    Order of effects: penalties, logit_bias, grammar mask, temperature, top_k, top_p, min_p, then argmax of
    logit + Gumbel noise of (seed, stream, position, token id). temperature 0 is argmax; ties go to the lower id.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    """-1: all."""
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    stream: int = 0
    """Which of n samples: sample j of one request draws from (seed, j)."""

    @property
    def needs_history(self) -> bool:
        """True if the draw depends on the tokens so far; such a request is never planned ahead of its last token."""
        return self.frequency_penalty != 0 or self.presence_penalty != 0 or self.repetition_penalty != 1


class LogprobSpec(Struct, frozen=True):
    """Which logprobs of a row are wanted besides the token's own: the `num_top` likeliest, and those of `ids`."""

    num_top: int = 0
    ids: tuple[int, ...] = ()


class Logprobs(Struct, frozen=True):
    """Logprobs of `rows` rows, as little-endian columns: of the raw float32 logits, before any sampling parameter."""

    rows: int = 0
    num_top: int = 0
    num_ids: int = 0
    chosen: bytes = b""
    """f32 [rows]: of the row's own token."""
    top_ids: bytes = b""
    """i32 [rows, num_top]: highest first, ties by lower id."""
    top: bytes = b""
    """f32 [rows, num_top]."""
    ids: bytes = b""
    """f32 [rows, num_ids], in the order of `LogprobSpec.ids`."""

    def joined(self, other: Logprobs) -> Logprobs:
        """These rows, then the other's; both must be of the same widths (an empty one has any)."""
        if not self.rows:
            return other
        if not other.rows:
            return self
        return Logprobs(
            self.rows + other.rows,
            self.num_top,
            self.num_ids,
            self.chosen + other.chosen,
            self.top_ids + other.top_ids,
            self.top + other.top,
            self.ids + other.ids,
        )


class Request(Struct, frozen=True):
    """One sequence to continue. Ids are in range and the length fits the context: whoever admits it has checked."""

    request_id: RequestId
    prompt: Sequence[int]
    max_new_tokens: int
    """0: score or prefill only."""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    min_new_tokens: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    """End-of-sequence ids are among them unless the client said ignore_eos."""
    logprobs: LogprobSpec | None = None
    """None: no logprob is computed."""
    logprob_start: int = -1
    """Scores of prompt tokens after this position are wanted (position s itself has no entry); -1: none.
    A cached prefix is reused only up to here, because what the cache skips has no logits."""
    priority: int = 0
    """Higher first; equal: by arrival."""
    cache_salt: str = ""
    """Prefixes are shared only between requests of equal salt."""
    use_cache: bool = True
    """False: neither reads nor fills the prefix cache (health probes)."""


class WindowPages(Struct, frozen=True):
    """The pages of one sliding kind that a segment may see or write; those before its window are gone."""

    first: int
    pages: Sequence[PageId]
    """pages[i] holds the positions of page first + i."""


class StateUse(Struct, frozen=True):
    """Where a segment's states come from and go to.

    positions   start ........ checkpoint at p ........ end
    states      ^ source       ^ after inputs 0..p-1    ^ live
    """

    source: StateSlot
    """ZERO_STATE if and only if the segment starts at 0; else the live slot, or a checkpoint at `start`."""
    live: StateSlot
    checkpoints: tuple[tuple[int, StateSlot], ...] = ()
    """(position, slot) with start < position <= end, in order."""


class Segment(Struct, frozen=True):
    """Some tokens of one request, once through the model.

    positions   start ................................ start + len(tokens) - 1
    rows           0 ......... score_start ........... len(tokens) - 1
    targets                    ^ targets[0] is the known next token of this row, and so on
    sample                                             ^ the last row draws the next token
    """

    request_id: RequestId
    start: int
    tokens: Sequence[int]
    """Only the last may be PENDING_TOKEN."""
    pages: Sequence[PageId]
    """Page i holds positions [i * page_size, (i + 1) * page_size); they cover all positions up to the segment's end."""
    targets: Sequence[int] = ()
    score_start: int = 0
    sample: SamplingParams | None = None
    logprobs: LogprobSpec | None = None
    """For the targets and for the sampled token alike."""
    history: tuple[Sequence[int], Sequence[int]] | None = None
    """(prompt ids, output ids so far), for penalties; None where none is set."""
    scored_as: SamplingParams | None = None
    """How the targets would have been drawn, penalties aside: what `logprobs_mode = processed` scores them by."""
    mask: bytes | None = None
    """Grammar: bit i of byte i // 8 says that id i is allowed; None: all."""
    windows: tuple[WindowPages, ...] = ()
    """One per sliding kind, in the order of `Pools.windows`."""
    state: StateUse | None = None
    """None: the model has no states."""


KindName = Literal["full", "sliding", "state"]


class Copy(Struct, frozen=True):
    """One page or state between the device and the host tier, all layers of its kind. A round trip changes no bit."""

    kind: KindName
    index: int
    """Which of `Pools.windows`, for "sliding"; else 0."""
    source: int
    target: int
    to_host: bool


class StepPlan(Struct, frozen=True):
    """One ragged step. Nothing in it may move a bit of any request's answer."""

    step: int
    segments: tuple[Segment, ...]
    copies: tuple[Copy, ...] = ()
    """To be done in this order before anything else of the step: one may read what another has just written."""


class SegmentResult(Struct, frozen=True):
    token: int | None = None
    """The sampled id, if the segment asked for one."""
    logprobs: Logprobs | None = None
    """One row: of the sampled token."""
    scores: Logprobs | None = None
    """One row per target."""


class StepResult(Struct, frozen=True):
    step: int
    segments: tuple[SegmentResult, ...]
    """In the plan's order."""


class WindowPool(Struct, frozen=True):
    """Pages of the layers that see `window` keys, their own among them."""

    window: int
    num_pages: int


class StatePool(Struct, frozen=True):
    """Slots for the states of all state layers: live ones, one per running request, then checkpoints."""

    interval: int
    """Checkpoints are at absolute multiples of this many tokens: of the page, and of every layer's chunk."""
    num_live: int
    num_checkpoints: int

    @property
    def num_slots(self) -> int:
        return self.num_live + self.num_checkpoints


class Pools(Struct, frozen=True):
    """How much there is of each kind of memory: the cache counts it, the runner owns it."""

    num_pages: int
    """Of the full kind. A model without full layers has these numbers too, but no memory behind them."""
    page_size: int
    windows: tuple[WindowPool, ...] = ()
    states: StatePool | None = None
    host: Pools | None = None
    """The host tier: as many windows; its `states` have checkpoints only, so slots begin with 0."""

    @property
    def prefix_interval(self) -> int:
        """A prefix is reused in multiples of this many tokens."""
        return self.states.interval if self.states else self.page_size


class Pending(Protocol):
    """A step that the device may still be working on."""

    def result(self) -> StepResult: ...


class StepRunner(Protocol):
    """The numerics side, as the engine sees it. `lag` is how many submitted steps may be uncommitted: 0 CPU, 1 GPU.

    Steps run in the order of their submission: what a step writes, every later one reads, and no earlier one does.
    """

    lag: int

    def submit(self, plan: StepPlan) -> Pending: ...


FinishKind = Literal["stop", "length", "abort"]


class Finish(Struct, frozen=True):
    """Why a request ended. `matched`: the stop token's id, the stop string or regex that ended it."""

    kind: FinishKind
    matched: int | str | None = None
    message: str = ""
    status_code: int | None = None


class Progress(Struct, frozen=True):
    """What one committed step did for one request."""

    request_id: RequestId
    token: int | None = None
    logprobs: Logprobs | None = None
    scores: Logprobs | None = None
    """New scores of prompt tokens, to be joined in order."""
    cached_tokens: int = 0
    """Prefix taken from the cache at first admission."""
    finish: Finish | None = None


class SpecialTokens(Struct, frozen=True):
    """Ids with a meaning, and the model's id range. The run folder's special_tokens.json."""

    vocab_size: int
    """Ids 0..vocab_size - 1 are the model's; the tokenizer may know fewer."""
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    """Each ends a generation, unless the client says ignore_eos. The first is the tokenizer's `eos_token`."""
    pad_id: int | None = None
    eot_id: int | None = None
    """End of a turn, if the checkpoint names one; it is among `eos_ids`."""
    add_bos: bool = False
    """Encoding a text with special tokens puts `bos_id` first (tokenizer.json does so; said here for readers)."""
    names: tuple[tuple[str, str], ...] = ()
    """What a chat template sees: ("bos_token", "<s>"), ..."""


class TokenizerFiles(Struct, frozen=True):
    """Everything that turns text into ids and back, as text: from any checkpoint, for the `tokenizers` library."""

    tokenizer_json: str
    special: SpecialTokens
    chat_template: str = ""
    """Jinja source; empty: the model has none."""
