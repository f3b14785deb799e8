"""The text side of one request: tokens in, records out. Text is made here and nowhere else.

    Progress ──▶ scores, token, logprob ──▶ wait ──▶ Record        wait: until the stream interval is due and no tail
                       └─ stream ──▶ stops ──┘                     of the text may still become a stop string

Where one record ends is a function of the tokens and the options alone, never of time or of the batch. What a record
says is never taken back: the text is held as long as a stop string could still cut it. Tokens that the engine sampled
past the stop, before it heard of it, are dropped here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct, field

from zerokl.engine.grammar import GrammarMask
from zerokl.engine.pattern import Pattern
from zerokl.engine.stops import Stops
from zerokl.types import Finish, Logprobs, Progress
from zerokl.wire.messages import Done, First
from zerokl.wire.records import Record


class Stream(Protocol):
    """Text of an output that grows (`tokenizer.TextStream`). The deltas joined are the decoded whole."""

    def push(self, ids: Sequence[int]) -> str:
        """The text that is certain with these ids; may be empty, as inside a character."""

    def finish(self) -> str:
        """What was held back, U+FFFD for what never became a character."""


class TextOptions(Struct, frozen=True):
    """What the client asked about the text of one request."""

    stop: tuple[str, ...] = ()
    patterns: tuple[Pattern, ...] = ()
    stop_specials: Mapping[int, str] = field(default_factory=dict)
    """Special tokens that have no text here, but whose name is a stop string."""
    no_trim: bool = False
    min_new_tokens: int = 0
    """Only a match that completes after this many tokens counts, as for stop tokens."""
    stream_interval: int = 1
    """A record at token 1, then every k tokens; 0: only one, at the end."""


class RequestText:
    """Feed it each `Progress` of one request; it gives the records, and says when the text ended the request."""

    def __init__(
        self, rid: int, stream: Stream, options: TextOptions, first: First, mask: GrammarMask | None = None
    ) -> None:
        self.rid = rid
        self.mask = mask
        """The request's grammar, if it has one."""
        self.ended = False
        """Its last record was given; what still comes is dropped."""
        self.stopped: Finish | None = None
        """Set if the text ended it: the engine does not know yet."""
        self.num_tokens = 0
        self._stream = stream
        self._options = options
        self._stops = Stops(options.stop, options.patterns)
        self._first: First | None = first
        self._cached_tokens = 0
        self._due = 1
        self._sent_chars = 0
        self._tokens: list[int] = []
        self._text = ""
        self._scores: list[Logprobs] = []
        self._logprobs: list[Logprobs] = []

    def advance(self, progress: Progress) -> Record | None:
        """Take what one step did; the record that is due with it, if one is."""
        if self.ended:
            return None
        if progress.token is not None and self.mask and 0 <= self.mask.failed_after <= self.num_tokens:
            self.stopped = Finish("abort", None, self.mask.failure, 400)
            return self.refused(400, self.mask.failure)
        self._cached_tokens = max(self._cached_tokens, progress.cached_tokens)
        if progress.scores is not None:
            self._scores.append(progress.scores)
        if progress.logprobs is not None:
            self._logprobs.append(progress.logprobs)
        finish = progress.finish
        if progress.token is not None:
            finish = self._take_token(progress.token, finish)
        elif finish is not None:
            finish = self._take_text(self._stream.finish(), finish)
        if finish is not None:
            return self._last_record(finish)
        return self._record_if_due() if progress.token is not None else None

    def refused(self, status: int, message: str, code: str | None = None, param: str | None = None) -> Record:
        """The last record where something other than the request itself ends it."""
        done = Done(0, "abort", self.num_tokens, None, None, message, status, code, param)
        self.ended = True
        return Record(self.rid, done=done)

    def _take_token(self, token: int, finish: Finish | None) -> Finish | None:
        self.num_tokens += 1
        self._tokens.append(token)
        named = self._options.stop_specials.get(token)
        if named is not None and self._counts():
            self.stopped = finish = Finish("stop", named)
        is_stop_token = finish is not None and finish.kind == "stop"
        delta = "" if is_stop_token and not self._options.no_trim else self._stream.push((token,))
        if finish is not None:
            delta += self._stream.finish()
        return self._take_text(delta, finish)

    def _take_text(self, delta: str, finish: Finish | None) -> Finish | None:
        """Add text; a stop string that completes in it comes before any other reason to end."""
        self._text += delta
        match = self._stops.push(delta, self._counts())
        if match is None:
            return finish
        if not self._options.no_trim:
            self._text = self._text[: match.start - self._sent_chars]
        self.stopped = Finish("stop", match.matched)
        return self.stopped

    def _counts(self) -> bool:
        return self.num_tokens > self._options.min_new_tokens

    def _record_if_due(self) -> Record | None:
        interval = self._options.stream_interval
        if interval == 0 or self.num_tokens < self._due or (self._stops.held and not self._options.no_trim):
            return None
        self._due = self.num_tokens + interval - (self.num_tokens - 1) % interval
        return self._record(None)

    def _last_record(self, finish: Finish) -> Record:
        self.ended = True
        is_id = isinstance(finish.matched, int)
        done = Done(
            0,
            finish.kind,
            self.num_tokens,
            finish.matched if isinstance(finish.matched, int) else None,
            None if is_id or finish.matched is None else str(finish.matched),
            finish.message,
            finish.status_code,
        )
        return self._record(done)

    def _record(self, done: Done | None) -> Record:
        record = Record(
            self.rid,
            self._tokens,
            self._text,
            joined(self._scores),
            joined(self._logprobs),
            self._take_first(),
            done,
        )
        self._sent_chars += len(self._text)
        self._tokens, self._text, self._scores, self._logprobs = [], "", [], []
        return record

    def _take_first(self) -> First | None:
        first, self._first = self._first, None
        if first is None:
            return None
        return First(first.row, first.seed, first.prompt_tokens, self._cached_tokens, first.leading_nulls)


def joined(parts: Sequence[Logprobs]) -> Logprobs | None:
    """All rows in order; None if there are none."""
    parts = [part for part in parts if part.rows]
    if len(parts) < 2:
        return parts[0] if parts else None
    return Logprobs(
        sum(part.rows for part in parts),
        parts[0].num_top,
        parts[0].num_ids,
        b"".join([part.chosen for part in parts]),
        b"".join([part.top_ids for part in parts]),
        b"".join([part.top for part in parts]),
        b"".join([part.ids for part in parts]),
    )
