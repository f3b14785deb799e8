"""What a case may ask of any server, and what a server says about itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, runtime_checkable

from zerokl.check.answers import Answer, Ask


class Can(StrEnum):
    """Abilities. A case names those it needs; a target without one makes the case `not possible`, and says so."""

    FLUSH = "empties its prefix cache on request"
    CACHED_COUNT = "reports how many tokens came from the cache"
    EXACT_CACHED_COUNT = "reuses whole pages, all that match: the count can be predicted"
    PROMPT_LOGPROBS = "scores prompts"
    RAW_LOGPROBS = "gives logprobs before temperature"
    CACHED_SCORES = "scores what follows a cached prefix"
    TOKEN_IDS = "names tokens by id in its answers"
    TOP_ROWS = "gives top-k rows"
    ARRIVALS = "takes requests while others run"
    STREAM = "streams"
    SEEDS = "takes a seed"
    UNSEEDED_REPEATS = "promises that unseeded sampling repeats too"
    STOPS = "stops at a given id"
    SAMPLES = "draws n samples of a prompt"
    ECHO = "scores prompts through /v1/completions"
    UPDATE_WEIGHTS = "loads other weights while it runs"
    COUNTERS = "counts steps, batch widths and chunks"
    TWO_TIERS = "keeps what its cache evicts in a second tier, and empties the first alone on request"
    WIDE_FLOATS = "prints float32 with all digits of the double"


@dataclass(frozen=True, slots=True)
class Facts:
    """What the server says about itself; None where it doesn't."""

    kind: str
    model: str = ""
    version: str = ""
    fingerprint: str = ""
    page_size: int | None = None
    """What a hit is a multiple of: a page of the cache, or the interval of state checkpoints."""
    cache_page: int | None = None
    """Where that is an interval of several pages: one page."""
    windows: tuple[int, ...] | None = None
    """Tokens that layers with a sliding window see; empty: every layer sees all."""
    taps: int | None = None
    """Tokens that the widest short convolution sees; 0: there is none."""
    chunk: int | None = None
    """Token budget of one step: where a long prompt is cut."""
    attention_chunk: int = 512
    context: int = 2048
    pool_tokens: int | None = None
    kept_tokens: int | None = None
    """Tokens whose prefixes the smallest of several pools can keep, where there are several."""
    max_running: int | None = None
    largest_id: int | None = None
    """Random prompts draw ids from 0 to here; unknown: to the largest that the corpus has."""


@dataclass(frozen=True, slots=True)
class Counters:
    """Monotone counts; the difference of two readings says what happened in between."""

    steps: int | None = None
    widths: dict[int, int] = field(default_factory=dict)
    """Requests decoding in one step -> steps of that width."""
    mixed_steps: int | None = None
    """Steps that both decoded and prefilled."""
    chunked_prefills: int | None = None
    """Segments that ended before their prompt did."""
    preemptions: int | None = None
    aborted: int | None = None
    submitted: int | None = None
    """Requests taken in: more than the checker sent means that somebody else uses the server."""
    evicted: int | None = None
    """Pages and state checkpoints that made way for others."""
    loaded: int | None = None
    """Of them, those that came back from the second tier."""

    def since(self, earlier: Counters) -> Counters:
        widths = {width: count - earlier.widths.get(width, 0) for width, count in self.widths.items()}
        return Counters(
            _minus(self.steps, earlier.steps),
            {width: count for width, count in widths.items() if count},
            _minus(self.mixed_steps, earlier.mixed_steps),
            _minus(self.chunked_prefills, earlier.chunked_prefills),
            _minus(self.preemptions, earlier.preemptions),
            _minus(self.aborted, earlier.aborted),
            _minus(self.submitted, earlier.submitted),
            _minus(self.evicted, earlier.evicted),
            _minus(self.loaded, earlier.loaded),
        )


class Target(Protocol):
    """A server behind its adapter. Methods raise CouldNotRun; an Answer carries what is wrong with it in `problems`."""

    @property
    def abilities(self) -> frozenset[Can]: ...

    async def facts(self) -> Facts: ...

    async def tokenize(self, text: str) -> list[int] | None:
        """None if the server can't; prompts are then random and repeated ids only."""
        ...

    async def flush(self) -> None: ...

    async def counters(self) -> Counters: ...

    async def ask(self, asks: Sequence[Ask]) -> list[list[Answer]]:
        """All at once, in one HTTP request where the route takes lists; per ask its samples."""
        ...

    async def stream(self, ask: Ask, on_token: Callable[[int], None]) -> list[Answer]:
        """As `ask` of one, streamed; on_token is told how many tokens have come whenever one comes."""
        ...

    async def texts(self, ids: Sequence[int]) -> dict[int, str]:
        """The ids' own texts, for people; empty if the server can't tell."""
        ...

    async def echo(self, ask: Ask) -> Sequence[Answer]:
        """As `ask` of one, through /v1/completions with echo; ask.score_from is 0."""
        ...


@runtime_checkable
class Updates(Protocol):
    """A target that can do `Can.UPDATE_WEIGHTS`."""

    async def update_weights(self, place: str) -> None:
        """Loads the weights at `place`; an empty one stands for those that the server was started with."""
        ...


@runtime_checkable
class TwoTiers(Protocol):
    """A target that can do `Can.TWO_TIERS`."""

    async def flush_first_tier(self) -> None: ...


def _minus(later: int | None, earlier: int | None) -> int | None:
    return None if later is None or earlier is None else later - earlier
