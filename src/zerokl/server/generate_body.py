"""The records of one sequence as /generate's body, whole or so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from zerokl.server.job import Job
from zerokl.server.scores import NATIVE_FLOOR, Pairs, Rows
from zerokl.server.tokens import TokenText
from zerokl.wire.messages import Done, First, LogprobOptions
from zerokl.wire.records import Record

Entry = list[Any]
"""[logprob or null, token id, text or null]"""


@dataclass(slots=True)
class Entries:
    """The three parallel lists of logprobs, of the prompt or of the output."""

    own: list[Entry] = field(default_factory=list)
    top: list[list[Entry] | None] = field(default_factory=list)
    ids: list[list[Entry] | None] = field(default_factory=list)


class GenerateBody:
    """What the engine said so far about one job, in the shapes of /generate."""

    def __init__(self, job: Job, rid: str, token_text: TokenText | None) -> None:
        self.job = job
        self.rid = rid
        self.text = ""
        self.output_ids: list[int] = []
        self.completion_tokens = 0
        self.done: Done | None = None
        self.input = Entries()
        self.output = Entries()
        self._token_text = token_text
        # A request that is aborted before its turn ends without ever having begun.
        self._first = First(row=0, seed=0, prompt_tokens=len(job.prompt.ids), cached_tokens=0)

    def add(self, record: Record) -> None:
        if record.first is not None:
            self._first = record.first
            if self.job.logprobs is not None:
                self._add_scores(record, record.first.leading_nulls)
        self.text += record.text
        self.output_ids += record.tokens
        self.completion_tokens += len(record.tokens)
        self.done = record.done
        if record.logprobs is not None:
            rows = Rows()
            rows.extend(record.logprobs, NATIVE_FLOOR)
            self._extend(self.output, rows, list(record.tokens))

    def _add_scores(self, record: Record, leading_nulls: int) -> None:
        """Scores run to the prompt's end, so they name their own start."""
        rows = Rows()
        rows.extend_nulls(leading_nulls)
        rows.extend(record.scores, NATIVE_FLOOR)
        prompt = self.job.prompt.ids
        self._extend(self.input, rows, list(prompt[len(prompt) - len(rows.chosen) :]))

    def _extend(self, entries: Entries, rows: Rows, tokens: list[int]) -> None:
        if not rows.chosen or self.job.logprobs is None:
            return
        wanted = self.job.logprobs.ids
        entries.own += [self._entry(value, token) for value, token in zip(rows.chosen, tokens, strict=True)]
        entries.top += [self._row(pairs) for pairs in rows.top]
        entries.ids += [self._row(None if row is None else list(zip(wanted, row, strict=True))) for row in rows.ids]

    def _row(self, pairs: Pairs | None) -> list[Entry] | None:
        return None if pairs is None else [self._entry(value, token) for token, value in pairs]

    def _entry(self, value: float | None, token: int) -> Entry:
        return [value, token, self._token_text(token) if self._token_text else None]

    @property
    def seed(self) -> int:
        """What the engine drew from; known from the first record on."""
        return self._first.seed

    # ---- bodies

    def whole(self, weight_version: str, latency_s: float | None, show_prompt: bool) -> dict[str, Any]:
        """Everything so far. `latency_s`: given in the last (or only) body."""
        meta: dict[str, Any] = {
            "id": self.rid,
            "finish_reason": finish_reason(self.done),
            "prompt_tokens": self._first.prompt_tokens,
            "weight_version": weight_version,
        }
        if self.job.logprobs is not None:
            meta |= self._logprob_fields(self.job.logprobs)
        meta["completion_tokens"] = self.completion_tokens
        meta["cached_tokens"] = self._first.cached_tokens
        if latency_s is not None:
            meta["e2e_latency"] = latency_s
        body: dict[str, Any] = {"text": self.text, "output_ids": self.output_ids, "meta_info": meta}
        if show_prompt:
            body["prompt_token_ids"] = list(self.job.prompt.ids)
        return body

    def delta(self, weight_version: str, latency_s: float | None, show_prompt: bool) -> dict[str, Any]:
        """The output since the last call; the prompt's lists and the counters stay whole."""
        body = self.whole(weight_version, latency_s, show_prompt)
        self.text, self.output_ids, self.output = "", [], Entries()
        return body

    def _logprob_fields(self, options: LogprobOptions) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "input_token_logprobs": self.input.own,
            "output_token_logprobs": self.output.own,
            "output_token_logprobs_length": self.completion_tokens,
        }
        if options.num_top:
            fields |= {"input_top_logprobs": self.input.top, "output_top_logprobs": self.output.top}
        if options.ids:
            fields |= {"input_token_ids_logprobs": self.input.ids, "output_token_ids_logprobs": self.output.ids}
        return fields


def finish_reason(done: Done | None) -> dict[str, Any] | None:
    """None while it runs."""
    if done is None:
        return None
    if done.kind == "stop":
        return {"type": "stop", "matched": done.matched_id if done.matched_text is None else done.matched_text}
    if done.kind == "length":
        return {"type": "length", "length": done.completion_tokens}
    return {"type": "abort", "message": done.message, "status_code": done.status, "err_type": done.code}
