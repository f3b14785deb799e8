"""The table of request fields, read once from `fields.json`; the Rust frontend reads the same file."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import orjson


@dataclass(frozen=True, slots=True)
class Field:
    """One key of a request body. `expected` ends the sentence "NAME must be ..."; `default` stands for absent."""

    name: str
    type: str
    expected: str
    default: Any = None
    help: str = ""
    min: float | None = None
    max: float | None = None
    above: float | None = None
    excluded: int | None = None
    max_items: int | None = None
    choices: tuple[str, ...] = ()
    required: bool = False
    per_prompt: bool = False
    """A list with one value per prompt is taken too."""
    null_is_given: bool = False
    """null is a value of its own, not "absent"."""
    fields: str = ""
    """The table of an object's keys."""


@functools.cache
def table(name: str) -> tuple[Field, ...]:
    """The fields of one body, in the order in which errors are reported."""
    rows: list[Field] = []
    for row in _document()[name]:
        if "include" in row:
            rows.extend(table(row["include"]))
        else:
            rows.append(_field(row))
    return tuple(rows)


def message(key: str, /, **values: Any) -> str:
    """The error text `key`, filled in. Values are shown as they were, so callers pass JSON texts through `shown`."""
    template: str = _document()["messages"][key]
    return template.format(**values)


def shown(value: Any, limit: int = 60) -> str:
    """A value as compact JSON for an error text, cut to `limit` characters."""
    text = orjson.dumps(value).decode()
    return text if len(text) <= limit else text[: limit - 3] + "..."


def nearest(name: str, known: list[str]) -> str | None:
    """The known name closest to `name` by edit distance (ties by order), if it is close enough to be a slip."""
    best = min(known, key=lambda candidate: _distance(name, candidate), default=None)
    return best if best is not None and _distance(name, best) <= max(1, len(name) // 3) else None


def _field(row: dict[str, Any]) -> Field:
    values = dict(row)
    values["excluded"] = values.pop("not", None)
    values["choices"] = tuple(values.get("choices", ()))
    return Field(**values)


@functools.cache
def _document() -> dict[str, Any]:
    text = files("zerokl.server").joinpath("fields.json").read_bytes()
    document: dict[str, Any] = orjson.loads(text)
    return document


def _distance(a: str, b: str) -> int:
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        previous, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (x != y))
    return row[-1]
