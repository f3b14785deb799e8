"""What a request becomes: jobs, one per sequence, each of which the engine answers with records.

msgspec's structs, as on the wire: a frozen dataclass costs ten times as much to make, and these are made per request.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field

from zerokl.wire.messages import Grammar, LogprobOptions, Sampling, Stopping


class Prompt(Struct, frozen=True):
    """Token ids that have been checked, and the text they came from, if they did."""

    ids: Sequence[int]
    text: str | None = None


class Job(Struct, frozen=True):
    """One sequence to generate: one prompt and one of its n samples."""

    prompt: Prompt
    sampling: Sampling = field(default_factory=Sampling)
    stopping: Stopping = field(default_factory=Stopping)
    max_new_tokens: int | None = None
    """0: score only. None: up to the context's end."""
    min_new_tokens: int = 0
    logprobs: LogprobOptions | None = None
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    stream_interval: int = 1
    """0: everything in one record, which is what an answer that isn't streamed wants."""
    priority: int = 0
    cache_salt: str = ""
    use_cache: bool = True
    grammar: Grammar | None = None
