"""The records of one sequence as a choice of /v1/chat/completions, whole or as deltas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from zerokl.server.job import Job
from zerokl.server.openai_common import Usage, finish_of
from zerokl.server.scores import OPENAI_FLOOR, Pairs, Rows
from zerokl.server.tokens import TokenBytes, TokenText
from zerokl.server.tools import CallPart, Event, ToolParser
from zerokl.server.tools.calls import call_id
from zerokl.wire.messages import Done
from zerokl.wire.records import Record


class ChatChoice:
    """Collects records; `message` gives all of them as one choice, `take_delta` what is new."""

    def __init__(
        self,
        job: Job,
        name: str,
        index: int,
        parser: ToolParser,
        token_bytes: TokenBytes,
        token_text: TokenText,
        show_ids: bool,
    ) -> None:
        self.index = index
        self._name = name
        self._parser = parser
        self._called = False
        self.seed = 0
        self.done: Done | None = None
        self.usage = Usage(len(job.prompt.ids))
        self._job = job
        self._events: list[Event] = []
        self._tokens: list[int] = []
        self._rows = Rows()
        self._token_bytes = token_bytes
        self._token_text = token_text
        self._show_ids = show_ids

    def add(self, record: Record) -> None:
        if record.first is not None:
            self.seed = record.first.seed
            self.usage.begin(record.first)
        self._events += self._parser.push(record.text)
        if record.done is not None:
            self._events += self._parser.finish()
        self._called = self._called or any(isinstance(event, CallPart) for event in self._events)
        self._tokens += record.tokens
        self._rows.extend(record.logprobs, OPENAI_FLOOR)
        self.done = record.done
        self.usage.completion_tokens += len(record.tokens)

    def message(self) -> dict[str, Any]:
        content = text_of(self._events)
        message: dict[str, Any] = {"role": "assistant", "content": content, "reasoning_content": None}
        if self._called:
            message |= {"content": content or None, "tool_calls": self._whole_calls()}
        reason, matched = self._finish()
        choice: dict[str, Any] = {
            "index": self.index,
            "message": message,
            "logprobs": self._logprobs(),
            "finish_reason": reason,
            "matched_stop": matched,
        }
        if self._show_ids:
            choice |= {"token_ids": self._tokens, "prompt_token_ids": list(self._job.prompt.ids)}
        return choice

    def opening(self) -> dict[str, Any]:
        """The first chunk: the role, before any text."""
        delta = {"role": "assistant", "content": "", "reasoning_content": None}
        choice = self._chunk(delta, None, None, None)
        if self._show_ids:
            choice |= {"token_ids": [], "prompt_token_ids": list(self._job.prompt.ids)}
        return choice

    def take_delta(self) -> dict[str, Any]:
        """The text, ids and scores since the last call."""
        delta: dict[str, Any] = {"content": text_of(self._events), "reasoning_content": None}
        if parts := [event for event in self._events if isinstance(event, CallPart)]:
            delta |= {"content": delta["content"] or None, "tool_calls": [self._call_delta(part) for part in parts]}
        choice = self._chunk(delta, self._logprobs(), None, None)
        if self._show_ids:
            choice |= {"token_ids": self._tokens, "prompt_token_ids": None}
        self._events, self._tokens, self._rows = [], [], Rows()
        return choice

    def closing(self) -> dict[str, Any]:
        """The last chunk: why it ended."""
        return self._chunk({"reasoning_content": None}, None, *self._finish())

    @property
    def has_delta(self) -> bool:
        """Whether the text holds something that no delta has given."""
        return bool(self._events)

    def _finish(self) -> tuple[str | None, int | str | None]:
        reason, matched = finish_of(self.done)
        return ("tool_calls", matched) if reason == "stop" and self._called else (reason, matched)

    def _whole_calls(self) -> list[dict[str, Any]]:
        calls: dict[int, dict[str, Any]] = {}
        for event in self._events:
            if isinstance(event, CallPart) and event.index in calls:
                calls[event.index]["function"]["arguments"] += event.arguments
            elif isinstance(event, CallPart):
                calls[event.index] = self._call(event)
        return list(calls.values())

    def _call(self, part: CallPart) -> dict[str, Any]:
        name = call_id(self._name, self.index, part.index, self._parser.id_digits)
        return {"id": name, "type": "function", "function": {"name": part.name, "arguments": part.arguments}}

    def _call_delta(self, part: CallPart) -> dict[str, Any]:
        if part.name is None:
            return {"index": part.index, "function": {"arguments": part.arguments}}
        return {"index": part.index, **self._call(part)}

    def _chunk(
        self, delta: dict[str, Any], logprobs: dict[str, Any] | None, reason: str | None, matched: int | str | None
    ) -> dict[str, Any]:
        return {
            "index": self.index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": reason,
            "matched_stop": matched,
        }

    def _logprobs(self) -> dict[str, Any] | None:
        if self._job.logprobs is None:
            return None
        rows = zip(self._tokens, self._rows.chosen, self._rows.top, strict=True)
        return {
            "content": [
                {**self._candidate(token, value), "top_logprobs": self._candidates(top)} for token, value, top in rows
            ]
        }

    def _candidates(self, row: Pairs | None) -> list[dict[str, Any]]:
        """A list, so that two ids of one text both stay."""
        return [self._candidate(token, value) for token, value in row or ()]

    def _candidate(self, token: int, value: float | None) -> dict[str, Any]:
        return {"token": self._token_text(token), "bytes": list(self._token_bytes(token)), "logprob": value}


def text_of(events: Sequence[Event]) -> str:
    return "".join(event for event in events if isinstance(event, str))
