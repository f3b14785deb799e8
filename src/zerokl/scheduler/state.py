"""How far one request is: what is known, what is computed, what is planned.

    tokens    prompt ................... outputs ...... │ pending (drawn by the step in flight, not known yet)
    planned   ────────────────────────────────▶         positions named by a plan so far; the next segment starts here
    rows      score rows logprob_start .. len(prompt) - 2; row r scores token r + 1

A segment ends either at a cut or at the end of what is known, and only then does its last row draw a token. Decoding is
the case in which one token is left, and so is resuming after a preemption: there is one path.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from zerokl.cache import Cache, Lease
from zerokl.errors import EngineError
from zerokl.types import PENDING_TOKEN, Finish, Logprobs, Progress, Request, SamplingParams, Segment, SegmentResult

MaskSource = Callable[[Sequence[int]], bytes | None]
"""A grammar: the output ids so far -> which ids may come next (see `Segment.mask`), None: all."""


class RequestState(Struct, eq=False):
    """One request from submit to its last page given back. Only the scheduler writes to it."""

    request: Request
    arrival: int
    max_outputs: int
    """max_new_tokens, or what the context leaves if that is less."""
    mask_source: MaskSource | None = None
    tokens: list[int] = field(default_factory=list)
    """The prompt, then the outputs known so far."""
    lease: Lease | None = None
    planned: int = 0
    in_flight: int = 0
    """Steps that name this request's pages and aren't committed."""
    pending: int = 0
    """Tokens drawn by steps that aren't committed."""
    planned_row: int = 0
    """The next row to score in a plan."""
    reported_row: int = 0
    """The next row whose score the client hasn't got; a preemption returns `planned_row` to here."""
    cached_tokens: int | None = None
    """Prefix found at first admission; None before."""
    leaving: bool = False
    """Preempted or ended while in flight: the lease goes back with the commit."""
    finish: Finish | None = None

    def __post_init__(self) -> None:
        self.tokens = list(self.request.prompt)
        scored = self.request.logprobs is not None and self.request.logprob_start >= 0
        self.planned_row = self.reported_row = self.request.logprob_start if scored else self.prompt_length

    @property
    def order(self) -> tuple[int, int]:
        """Who comes first: higher priority, then earlier arrival."""
        return (-self.request.priority, self.arrival)

    @property
    def prompt_length(self) -> int:
        return len(self.request.prompt)

    @property
    def num_outputs(self) -> int:
        return len(self.tokens) - self.prompt_length

    @property
    def match_limit(self) -> int:
        """A prefix is reused up to here: the last token must be run, and so must rows whose scores are still owed."""
        return min(len(self.tokens) - 1, self.reported_row if self._owes_scores else len(self.tokens))

    @property
    def num_ready(self) -> int:
        """Tokens that the next plan may name, the pending one included where it may be planned ahead."""
        ahead = self.pending if self._may_run_ahead else 0
        return len(self.tokens) + ahead - self.planned

    @property
    def is_decoding(self) -> bool:
        """One token left, and it is one that the model drew."""
        return self.num_ready == 1 and self.planned >= self.prompt_length

    def admit(self, cache: Cache) -> bool:
        """Takes a lease with room for all known tokens; False, and nothing has changed, if there is none."""
        request = self.request
        self.lease = cache.lease_with_room(
            self.tokens, self.match_limit, request.cache_salt, request.use_cache, num_tokens=len(self.tokens)
        )
        if self.lease is None:
            return False
        self.planned = self.lease.cached_tokens
        if self.cached_tokens is None:
            self.cached_tokens = self.lease.cached_tokens
        return True

    def give_back(self) -> None:
        """Gives the lease back; a later admission starts again from what is cached then."""
        if self.lease:
            self.lease.release()
        self.lease, self.planned, self.planned_row, self.leaving = None, 0, self.reported_row, False

    def plan(self, count: int) -> Planned:
        """The next `count` tokens as a segment, and counts them as planned."""
        assert self.lease is not None
        start, end = self.planned, self.planned + count
        known_end = len(self.tokens) + self.pending
        tokens = self.tokens[start:end]
        if len(tokens) < count:
            tokens.append(PENDING_TOKEN)
        draws = end == known_end and self.num_outputs + self.pending < self.max_outputs
        score_start, targets = self._plan_scores(start, end)
        segment = Segment(
            request_id=self.request.request_id,
            start=start,
            tokens=tokens,
            pages=self.lease.pages,
            targets=targets,
            score_start=score_start,
            sample=self._sampling() if draws else None,
            logprobs=self.request.logprobs if draws or targets else None,
            history=self._history() if draws else None,
            scored_as=self._scored_as() if targets else None,
            mask=self.mask_source(self._outputs()) if draws and self.mask_source else None,
            windows=self.lease.window_pages(),
            state=self.lease.state_use(start, end),
        )
        planned = Planned(self, segment, is_decode=self.is_decoding, is_cut=end < known_end)
        self.planned = end
        self.planned_row += len(targets)
        self.pending += draws
        self.in_flight += 1
        return planned

    def commit(self, segment: Segment, result: SegmentResult) -> Progress | None:
        """Takes one segment's outcome: token, scores, full pages. None if there is nothing to report."""
        assert self.lease is not None
        token, num_scores = result.token, result.scores.rows if result.scores else 0
        if (token is None) == (segment.sample is not None) or num_scores != len(segment.targets):
            name = f"request {self.request.request_id} at {segment.start}"
            raise EngineError(f"{name}: token {token} and {num_scores} scores don't answer the segment")
        self.lease.computed(self.tokens, segment.start + len(segment.tokens))
        self.reported_row += num_scores
        if token is not None:
            self.pending -= 1
            self.tokens.append(token)
        finish = self._ending(segment, token)
        if token is None and not num_scores and finish is None:
            return None
        return self.progress(token, result.logprobs, result.scores, finish)

    def progress(
        self,
        token: int | None = None,
        logprobs: Logprobs | None = None,
        scores: Logprobs | None = None,
        finish: Finish | None = None,
    ) -> Progress:
        return Progress(self.request.request_id, token, logprobs, scores, self.cached_tokens or 0, finish)

    @property
    def _owes_scores(self) -> bool:
        return self.reported_row < self.prompt_length - 1

    @property
    def _may_run_ahead(self) -> bool:
        """Whether the pending token may be run before it is known, in order to draw the one after it."""
        drawn = self.num_outputs + self.pending
        return drawn < self.max_outputs and not self.request.sampling.needs_history and self.mask_source is None

    def _plan_scores(self, start: int, end: int) -> tuple[int, Sequence[int]]:
        first, last = max(start, self.planned_row), min(end, self.prompt_length - 1)
        if first >= last:
            return 0, ()
        return first - start, self.tokens[first + 1 : last + 1]

    def _sampling(self) -> SamplingParams:
        """The request's own, without the stop ids while too few tokens are drawn to stop (a grammar knows better)."""
        sampling, stops = self.request.sampling, self.request.stop_token_ids
        if self.num_outputs + self.pending >= self.request.min_new_tokens or not stops or self.mask_source:
            return sampling
        banned = tuple((token, -math.inf) for token in sorted(stops))
        return replace(sampling, logit_bias=sampling.logit_bias + banned)

    def _scored_as(self) -> SamplingParams:
        """Without penalties: they are about what was drawn before, and a prompt wasn't."""
        sampling = self.request.sampling
        if not sampling.needs_history:
            return sampling
        return replace(sampling, frequency_penalty=0.0, presence_penalty=0.0, repetition_penalty=1.0)

    def _history(self) -> tuple[Sequence[int], Sequence[int]] | None:
        return (self.request.prompt, self._outputs()) if self.request.sampling.needs_history else None

    def _outputs(self) -> Sequence[int]:
        return self.tokens[self.prompt_length :]

    def _ending(self, segment: Segment, token: int | None) -> Finish | None:
        may_stop = self.num_outputs > self.request.min_new_tokens
        if token is not None and may_stop and token in self.request.stop_token_ids:
            return Finish("stop", matched=token)
        done = segment.start + len(segment.tokens) >= self.prompt_length and self.num_outputs >= self.max_outputs
        return Finish("length") if done else None


class Planned(Struct, frozen=True):
    """A segment in flight and whose it is."""

    state: RequestState
    segment: Segment
    is_decode: bool
    is_cut: bool
