"""What comes back: one finished request as plain Python values."""

from __future__ import annotations

from msgspec import Struct

from zerokl.errors import EngineError, InvalidRequest, NoRoom
from zerokl.llm.params import Params
from zerokl.types import Logprobs
from zerokl.wire.messages import Done, First
from zerokl.wire.records import Record

TopRow = list[tuple[int, float]]
"""(id, logprob), highest first, ties by lower id."""


class Output(Struct, frozen=True):
    """Logprobs are exact float32 values of the raw logits, so `==` compares bits."""

    text: str
    token_ids: list[int]
    """A matched stop token, or the token that completed a stop string, is the last."""
    finish_reason: str
    """stop, length or abort."""
    matched: int | str | None
    """The stop token, string or pattern."""
    prompt_ids: list[int]
    cached_tokens: int
    """Of the prompt, taken from the prefix cache."""
    seed: int
    logprobs: list[float] | None = None
    top_logprobs: list[TopRow] | None = None
    token_ids_logprobs: list[list[float]] | None = None
    """In the order of the ids asked for."""
    prompt_logprobs: list[float | None] | None = None
    """From `logprob_start` on; the first is None."""
    prompt_top_logprobs: list[TopRow | None] | None = None

    @property
    def all_ids(self) -> list[int]:
        """Prompt and output."""
        return [*self.prompt_ids, *self.token_ids]


def output_of(prompt: list[int], record: Record, params: Params) -> Output:
    """The one record of a request that did not stream."""
    first, done = known(record)
    rows, scores = record.logprobs or Logprobs(), record.scores or Logprobs()
    wants, wants_prompt = params.wants_logprobs, params.logprob_start >= 0
    nulls: list[None] = [None] * first.leading_nulls
    return Output(
        text=record.text,
        token_ids=list(record.tokens),
        finish_reason=done.kind,
        matched=done.matched_text if done.matched_id is None else done.matched_id,
        prompt_ids=prompt,
        cached_tokens=first.cached_tokens,
        seed=first.seed,
        logprobs=floats(rows.chosen) if wants else None,
        top_logprobs=top_rows(rows) if params.top_logprobs else None,
        token_ids_logprobs=id_rows(rows) if params.token_ids_logprob else None,
        prompt_logprobs=[*nulls, *floats(scores.chosen)] if wants_prompt else None,
        prompt_top_logprobs=[*nulls, *top_rows(scores)] if wants_prompt and params.top_logprobs else None,
    )


def known(record: Record) -> tuple[First, Done]:
    if record.first is None or record.done is None:
        raise EngineError("a request that does not stream has one record")
    return record.first, record.done


def check_record(record: Record) -> Record:
    """Raises what a record says that a server would answer with a status."""
    done = record.done
    if done is None or done.status is None:
        return record
    if done.status < 500 and done.status != 429:
        raise InvalidRequest(done.message, param=done.param, code=done.code, status=done.status)
    raise NoRoom(done.message, code=done.code or "queue_full", status=done.status)


def floats(column: bytes) -> list[float]:
    return list(memoryview(column).cast("f"))


def top_rows(rows: Logprobs) -> list[TopRow]:
    ids = memoryview(rows.top_ids).cast("i").tolist()
    pairs = list(zip(ids, floats(rows.top), strict=True))
    return [pairs[start : start + rows.num_top] for start in range(0, len(pairs), rows.num_top or 1)]


def id_rows(rows: Logprobs) -> list[list[float]]:
    values = floats(rows.ids)
    return [values[start : start + rows.num_ids] for start in range(0, len(values), rows.num_ids or 1)]
