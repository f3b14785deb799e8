"""Results in one file: a head that says what was asked of whom, then a line per question, written as it is answered.

So a run that was stopped is continued where it stood, and a finished file is the reference for a paired comparison.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from zerokl.errors import ConfigError
from zerokl.evals.asking import Server

VERSION = 1
VERDICTS = ("right", "wrong", "no number", "truncated")


@dataclass(frozen=True, slots=True)
class Head:
    """Two files with equal `task` and `settings` asked the same."""

    task: str
    settings: dict[str, Any]
    server: Server

    def as_json(self) -> dict[str, Any]:
        return {"zerokl_eval": VERSION, **asdict(self)}


@dataclass(frozen=True, slots=True)
class Answered:
    """One question's result. Logprobs are those of the output tokens, or of a scored continuation."""

    id: int
    prompt: str
    """The prompt's hash."""
    verdict: str = ""
    text: str = ""
    finish: str = ""
    value: str | None = None
    ids: list[int] | None = None
    logprobs: list[float] | None = None
    cached_tokens: int | None = None
    seconds: float = 0.0

    def output(self) -> tuple[Any, ...]:
        """What must not differ between two runs of a reproducible server, whatever the circumstances."""
        return (self.text, self.finish, self.ids, self.logprobs)


@dataclass(slots=True)
class Results:
    head: Head
    answers: dict[int, Answered] = field(default_factory=dict)

    def counts(self) -> Counter[str]:
        return Counter(one.verdict for one in self.answers.values())

    @property
    def right(self) -> int:
        return self.counts()["right"]


class ResultsFile:
    """Appends each answer and flushes. Opening a file of the same head continues it; of another one is an error."""

    def __init__(self, path: Path, head: Head, *, overwrite: bool = False) -> None:
        self.results = Results(head)
        if path.exists() and path.stat().st_size and not overwrite:
            kept = load(path)
            if kept.head != head:
                raise ConfigError(f"{path} holds another run ({_difference(kept.head, head)}); choose another file")
            self.results.answers = kept.answers
        lines = [head.as_json(), *(asdict(one) for one in self.results.answers.values())]
        path.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))  # without a torn last line
        self._file: BinaryIO = path.open("ab")

    def add(self, answered: Answered) -> None:
        self.results.answers[answered.id] = answered
        self._file.write(orjson.dumps(answered) + b"\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def load(path: Path) -> Results:
    """Raises ConfigError if it is no file of results. A last line that was cut off is left out."""
    rows = list(_rows(path.read_bytes().splitlines())) if path.exists() else []
    if not rows or rows[0].get("zerokl_eval") != VERSION:
        raise ConfigError(f"{path} is no file of results that this version reads")
    head = Head(rows[0]["task"], rows[0]["settings"], Server(**rows[0]["server"]))
    return Results(head, {row["id"]: Answered(**row) for row in rows[1:]})


def _rows(lines: Iterable[bytes]) -> Iterable[dict[str, Any]]:
    for line in lines:
        try:
            yield orjson.loads(line)
        except orjson.JSONDecodeError:
            return


def _difference(one: Head, other: Head) -> str:
    first, second = one.as_json(), other.as_json()
    first |= first.pop("settings") | {f"server {k}": v for k, v in first.pop("server").items()}
    second |= second.pop("settings") | {f"server {k}": v for k, v in second.pop("server").items()}
    changed = [key for key in first | second if first.get(key) != second.get(key)]
    return ", ".join(f"{key} {first.get(key)!r} instead of {second.get(key)!r}" for key in changed)
