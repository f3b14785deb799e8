"""What the scheduler has done since the start. Every count only grows, so that a checker can assert by differences."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct, field
from msgspec.structs import replace

from zerokl.scheduler.state import Planned


class Counters(Struct):
    steps: int = 0
    prefill_tokens: int = 0
    """Tokens run that were known before they ran: prompts, and what a preempted request runs again."""
    decode_tokens: int = 0
    """Tokens run one at a time, each drawn by an earlier step."""
    cached_tokens: int = 0
    """Prompt tokens that the prefix cache spared, at first admission."""
    scored_tokens: int = 0
    """Prompt tokens whose logprob was reported."""
    sampled_tokens: int = 0
    """Tokens reported."""
    dropped_tokens: int = 0
    """Tokens drawn past the end of a request, one step behind; nobody sees them."""
    chunked_prefills: int = 0
    """Prefill segments that ended before what was known did: cut by the token budget."""
    mixed_steps: int = 0
    """Steps with both decodes and prefills."""
    preemptions: int = 0
    submitted: int = 0
    refused: int = 0
    finished: int = 0
    """Requests that ended, aborted ones too."""
    aborted: int = 0
    last_batch_width: int = 0
    """Segments in the last step (this one count goes up and down)."""
    max_batch_width: int = 0
    decode_widths: dict[int, int] = field(default_factory=dict)
    """Decodes in a step -> number of such steps; steps without any aren't counted."""

    def record_step(self, planned: Iterable[Planned]) -> None:
        """Counts one step as it is planned."""
        planned = list(planned)
        decodes = sum(one.is_decode for one in planned)
        prefills = [one for one in planned if not one.is_decode]
        self.steps += 1
        self.decode_tokens += decodes
        self.prefill_tokens += sum(len(one.segment.tokens) for one in prefills)
        self.chunked_prefills += sum(one.is_cut for one in prefills)
        self.mixed_steps += bool(decodes and prefills)
        self.last_batch_width = len(planned)
        self.max_batch_width = max(self.max_batch_width, len(planned))
        if decodes:
            self.decode_widths[decodes] = self.decode_widths.get(decodes, 0) + 1

    def copy(self) -> Counters:
        return replace(self, decode_widths=dict(sorted(self.decode_widths.items())))


class SchedulerStats(Struct, frozen=True):
    """Requests now, and the counters."""

    running: int
    queued: int
    departing: int
    """Requests whose pages come back when the step in flight is committed."""
    counters: Counters
