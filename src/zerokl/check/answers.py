"""What is asked of a server and what came back: ids in, ids and float32 bits out, whatever the route."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

Phase = Literal["scored", "first", "decoded"]
"""How a row came to be: a prompt token scored, the first generated token (end of prefill), a later one."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. Token ids only: text would drag the tokenizer into the comparison."""

    ids: tuple[int, ...]
    new_tokens: int
    """0: score or prefill only."""
    score_from: int | None = None
    """Logprobs of the prompt tokens after this position are wanted; None: of none."""
    top: int = 5
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    samples: int = 1
    logprobs: bool = True
    stop: int | None = None
    """An id that ends the answer; end-of-sequence then does so too. Without one, nothing but the length ends it."""

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    def draw_key(self, sample: int) -> tuple[object, ...]:
        """What, besides the history, a drawn token may depend on."""
        if self.greedy:
            return ("greedy",)
        seed = ("prompt", self.ids) if self.seed is None else self.seed
        return (self.temperature, self.top_p, seed, sample)

    def generating(self, new_tokens: int) -> Ask:
        return replace(self, new_tokens=new_tokens)

    def prefill_only(self) -> Ask:
        """The same prompt, computed and cached but not answered."""
        return replace(self, new_tokens=0, score_from=None, logprobs=False, samples=1)

    def unscored(self) -> Ask:
        """Without prompt logprobs, so that a cached prefix may be used."""
        return replace(self, score_from=None)


@dataclass(frozen=True, slots=True)
class Row:
    """The logprobs at one position: of the token that stands there, and of the likeliest."""

    position: int
    """Absolute: the token is ids[position] of prompt + output."""
    token: int
    logprob: int | None
    """Float32 bits; None where the server gave none."""
    top: tuple[tuple[int, int], ...] = ()
    """(token id, float32 bits), in the server's order."""
    phase: Phase = "scored"


@dataclass(frozen=True, slots=True)
class Answer:
    """One sample of one request's answer."""

    ask: Ask
    output: tuple[int, ...]
    rows: tuple[Row, ...]
    cached_tokens: int | None = None
    finish: str = ""
    sample: int = 0
    not_float32: tuple[float, ...] = ()
    """Numbers that are no float32: digits were lost or invented on the way."""
    problems: tuple[str, ...] = ()
    """What is missing or contradicts itself; what is there is compared all the same."""
    num_frames: int = 0
    """Frames of a stream that carried a new token."""
    context: dict[str, object] = field(default_factory=dict)

    @property
    def stopped(self) -> bool:
        """It ended by itself, not by its length."""
        return self.finish == "stop"

    @property
    def text_ids(self) -> tuple[int, ...]:
        return self.ask.ids + self.output
