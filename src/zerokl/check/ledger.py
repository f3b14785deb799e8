"""Every value that a server gave, kept under what it is a function of.

    logprob   (history, token id)       whoever asked, scored or generated, chosen or in a top-k row
    ranking   (history)                 the ids of the top-k row, compared as far as both rows reach
    token     (history, how drawn)      greedy, or temperature, top-p, seed and sample
    end       (history, stop id)        whether the answer ends here

`history` is a digest of the token ids before the position, so a prompt, the same prompt plus half an answer, and
another branch of the same prefix meet wherever their texts agree. After two answers diverge their histories differ, so
their later positions are never compared: the divergence itself counts once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from zerokl.check.answers import Answer, Phase, Row

Kind = Literal["token", "logprob", "ranking", "end"]
K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class Setting:
    """The circumstances of one answer: everything that must not matter."""

    case: str
    how: str
    """For people: "alone, cold", "among 7 others"."""
    number: int = 0
    """Of the answer, in the order in which they came."""
    neighbours: int = 0
    """Requests sent at the same time."""
    place: int = 0
    """In its batch."""
    stream: bool = False
    route: str = "generate"
    server: str = ""
    cached_tokens: int | None = None
    prompt_tokens: int = 0
    perhaps_cached: bool = False
    """The server doesn't count cached tokens, but has computed the prompt's beginning before."""
    temperature: float = 0.0
    top: int = 0
    first: bool = False
    """Nothing was asked between the last flush and this."""
    epoch: int = 0
    """Of the server: it grows with each restart and each update of weights."""

    def describe(self) -> str:
        server = f"{self.server}: " if self.server else ""
        cached = f", {self.cached_tokens} tokens cached" if self.cached_tokens else ""
        cached = ", perhaps cached" if self.perhaps_cached else cached
        return f"{server}{self.how}{cached} [{self.case} #{self.number}]"


@dataclass(slots=True)
class Seen:
    """One value and where it was first seen."""

    value: tuple[int, ...]
    setting: Setting
    phase: Phase


@dataclass(frozen=True, slots=True)
class Difference:
    """One value that differs from the first one seen under its key."""

    kind: Kind
    position: int
    token: int
    """The id whose logprob it is; for a drawn token, the first one seen."""
    first: tuple[int, ...]
    other: tuple[int, ...]
    first_setting: Setting
    other_setting: Setting
    first_phase: Phase
    other_phase: Phase


@dataclass(slots=True)
class Meeting:
    """One position at which this answer met an earlier one, and what differed there (usually nothing)."""

    position: int
    phase: Phase
    first_phase: Phase
    first_setting: Setting
    kinds: list[Kind] = field(default_factory=list)


@dataclass(slots=True)
class Pair:
    """The chosen token's logprob seen twice: what k3 and max |d| are made of."""

    position: int
    first: int
    other: int


@dataclass(slots=True)
class Comparison:
    """What one answer's values said when they met the values seen before."""

    answer: Answer
    setting: Setting
    values: int = 0
    meetings: list[Meeting] = field(default_factory=list)
    """One per position at which at least one value was compared, in order."""
    differences: list[Difference] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)

    @property
    def differing(self) -> int:
        return len(self.differences)

    @property
    def positions(self) -> int:
        return len(self.meetings)

    def met(self, row: Row, seen: Seen, kind: Kind, differs: bool) -> None:
        """Counts one value compared with an earlier answer's."""
        self.values += 1
        if not self.meetings or self.meetings[-1].position != row.position:
            self.meetings.append(Meeting(row.position, row.phase, seen.phase, seen.setting))
        if differs:
            meeting = self.meetings[-1]
            if not meeting.kinds:
                meeting.first_phase, meeting.first_setting = seen.phase, seen.setting
            meeting.kinds.append(kind)


class Ledger:
    """All values seen so far. `observe` compares an answer with them, then adds what is new."""

    def __init__(self) -> None:
        self._logprobs: dict[tuple[bytes, int], Seen] = {}
        self._rankings: dict[bytes, Seen] = {}
        self._tokens: dict[tuple[bytes, object], Seen] = {}
        self._ends: dict[tuple[bytes, int], Seen] = {}

    def observe(
        self, answer: Answer, setting: Setting, *, scaled: bool = False, unseeded_repeats: bool = True
    ) -> Comparison:
        """`scaled`: the server's output logprobs are after temperature, so they are a function of that too.
        `unseeded_repeats`: two draws without a seed are the same draw; otherwise each is one of its own."""
        comparison = Comparison(answer, setting)
        text = answer.text_ids
        digests = history_digests(text)
        prompt = len(answer.ask.ids)
        draw = answer.ask.draw_key(answer.sample)
        if answer.ask.seed is None and not answer.ask.greedy and not unseeded_repeats:
            draw = ("unseeded", setting.server, setting.number)
        for row in answer.rows:
            history = digests[row.position]
            if scaled and row.phase != "scored" and answer.ask.temperature not in (0, 1):
                history += repr(answer.ask.temperature).encode()
            if row.position >= prompt:
                self._token(comparison, history, draw, row)
            self._logprob_values(comparison, history, row)
            self._ranking(comparison, history, row)
        if answer.ask.stop is not None:
            self._end(comparison, answer.ask.stop, digests)
        return comparison

    def _token(self, comparison: Comparison, history: bytes, draw: object, row: Row) -> None:
        seen = self._meet(self._tokens, (history, draw), (row.token,), comparison, row)
        if seen is not None:
            self._judge(comparison, "token", row, seen.value[0], seen, (row.token,))

    def _end(self, comparison: Comparison, stop: int, digests: Sequence[bytes]) -> None:
        """At each place behind the prompt: did the answer end there? Where it was cut off, nobody knows."""
        answer = comparison.answer
        prompt, length = len(answer.ask.ids), len(answer.text_ids)
        for position in range(prompt + 1, length + answer.stopped):
            row = Row(position, stop, None, phase="decoded")
            ends = (int(position == length),)
            seen = self._meet(self._ends, (digests[position], stop), ends, comparison, row)
            if seen is not None:
                self._judge(comparison, "end", row, stop, seen, ends)

    def _logprob_values(self, comparison: Comparison, history: bytes, row: Row) -> None:
        chosen = [] if row.logprob is None else [(row.token, row.logprob)]
        for index, (token, bits) in enumerate([*chosen, *row.top]):
            seen = self._meet(self._logprobs, (history, token), (bits,), comparison, row)
            if seen is None:
                continue
            self._judge(comparison, "logprob", row, token, seen, (bits,))
            if index < len(chosen) and seen.setting is not comparison.setting:
                comparison.pairs.append(Pair(row.position, seen.value[0], bits))

    def _ranking(self, comparison: Comparison, history: bytes, row: Row) -> None:
        if not row.top:
            return
        ids = tuple(token for token, _ in row.top)
        seen = self._meet(self._rankings, history, ids, comparison, row)
        if seen is None:
            return
        shared = min(len(ids), len(seen.value))
        self._judge(comparison, "ranking", row, ids[0], seen, ids[:shared], seen.value[:shared])
        if len(ids) > len(seen.value):
            self._rankings[history] = Seen(ids, comparison.setting, row.phase)

    def _meet(
        self, kept: dict[K, Seen], key: K, value: tuple[int, ...], comparison: Comparison, row: Row
    ) -> Seen | None:
        """The value seen before, or None after keeping this first one."""
        seen = kept.get(key)
        if seen is None:
            kept[key] = Seen(value, comparison.setting, row.phase)
        return seen

    def _judge(
        self,
        comparison: Comparison,
        kind: Kind,
        row: Row,
        token: int,
        seen: Seen,
        value: tuple[int, ...],
        first: tuple[int, ...] | None = None,
    ) -> None:
        first = seen.value if first is None else first
        if seen.setting is not comparison.setting:  # a top-k row repeats the chosen token: checked, not counted
            comparison.met(row, seen, kind, first != value)
        if first != value:
            comparison.differences.append(
                Difference(
                    kind,
                    row.position,
                    token,
                    first,
                    value,
                    seen.setting,
                    comparison.setting,
                    seen.phase,
                    row.phase,
                )
            )


def history_digests(ids: Sequence[int]) -> list[bytes]:
    """Digest i stands for ids[:i]; there are len(ids) + 1."""
    return list(_chain(ids))


def _chain(ids: Sequence[int]) -> Iterator[bytes]:
    running = hashlib.blake2b(digest_size=12)
    yield running.digest()
    for token in ids:
        running.update(token.to_bytes(8, "little"))
        yield running.digest()
