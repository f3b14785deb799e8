"""The records of one sequence as a choice of /v1/completions."""

from __future__ import annotations

from typing import Any

from zerokl.server.job import Job
from zerokl.server.openai_common import Usage, finish_of
from zerokl.server.scores import OPENAI_FLOOR, Pairs, Rows
from zerokl.server.tokens import TokenText
from zerokl.wire.messages import Done
from zerokl.wire.records import Record


class CompletionChoice:
    """Collects records; `take` gives what is new as one choice, so one `take` at the end gives the whole."""

    def __init__(self, job: Job, index: int, echo: str | None, token_text: TokenText, show_ids: bool) -> None:
        self.index = index
        self.seed = 0
        self.usage = Usage(len(job.prompt.ids))
        self._job = job
        self._echo = echo
        self._text = echo or ""
        self._tokens: list[int] = []
        self._scored: list[int] = []
        """The tokens that `_rows` is about."""
        self._rows = Rows()
        self._offset = 0
        self._done: Done | None = None
        self._token_text = token_text
        self._show_ids = show_ids
        self._prompt_shown = False

    def add(self, record: Record) -> None:
        if record.first is not None:
            self.seed = record.first.seed
            self.usage.begin(record.first)
            self._add_prompt(record, record.first.leading_nulls)
        self._text += record.text
        self._tokens += record.tokens
        self._done = record.done
        self.usage.completion_tokens += len(record.tokens)
        if record.logprobs is not None:
            self._rows.extend(record.logprobs, OPENAI_FLOOR)
            self._scored += record.tokens

    def _add_prompt(self, record: Record, leading_nulls: int) -> None:
        if self._echo is None or self._job.logprobs is None:
            return
        self._rows.extend_nulls(leading_nulls)
        self._rows.extend(record.scores, OPENAI_FLOOR)
        self._scored += self._job.prompt.ids

    def take(self) -> dict[str, Any]:
        """The choice, of everything since the last call."""
        reason, matched = finish_of(self._done)
        choice: dict[str, Any] = {
            "index": self.index,
            "text": self._text,
            "logprobs": self._logprobs(),
            "finish_reason": reason,
            "matched_stop": matched,
        }
        if self._show_ids:
            choice["token_ids"] = self._tokens
            choice["prompt_token_ids"] = None if self._prompt_shown else list(self._job.prompt.ids)
        self._text, self._tokens, self._scored, self._rows = "", [], [], Rows()
        self._prompt_shown = True
        return choice

    def _logprobs(self) -> dict[str, Any] | None:
        if self._job.logprobs is None:
            return None
        texts = [self._token_text(token) for token in self._scored]
        return {
            "text_offset": [self._advance(text) for text in texts],
            "token_logprobs": self._rows.chosen,
            "tokens": texts,
            "top_logprobs": [self._by_text(row) for row in self._rows.top] if self._job.logprobs.num_top else [],
        }

    def _advance(self, text: str) -> int:
        """The token's offset in code points, counted over the texts shown."""
        offset = self._offset
        self._offset += len(text)
        return offset

    def _by_text(self, row: Pairs | None) -> dict[str, float] | None:
        """Two ids may have one text: the first, so the more likely, stays."""
        if row is None:
            return None
        by_text: dict[str, float] = {}
        for token, value in row:
            by_text.setdefault(self._token_text(token), value)
        return by_text
