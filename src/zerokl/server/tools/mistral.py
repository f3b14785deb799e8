"""Mistral's forms, after a mark that is a special token: an array of calls, or (newer) a name and its arguments.

    [TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Bern"}}]
    [TOOL_CALLS]weather[ARGS]{"city": "Bern"}[TOOL_CALLS]time[ARGS]{}

What follows the mark and is no call is content, the mark included.
"""

from __future__ import annotations

from typing import ClassVar

from zerokl.server.tools.balance import Balance
from zerokl.server.tools.calls import BLANKS, CallPart, Event, ToolParser, as_json, function_of
from zerokl.server.tools.content import Content

MARK = "[TOOL_CALLS]"
ARGUMENTS, CALL_ID = "[ARGS]", "[CALL_ID]"


class Mistral(ToolParser):
    """After a mark one JSON value is read, with a name before it or not; then text may follow, or another mark."""

    shows_special: ClassVar[bool] = True
    id_digits: ClassVar[int] = 9

    def __init__(self) -> None:
        self._content = Content(MARK)
        self._body: str | None = None
        """What came after a mark; None outside."""
        self._balance: Balance | None = None
        self._start = 0
        self._seen = 0
        self._calls = 0

    def push(self, text: str) -> list[Event]:
        events: list[Event] = []
        while text:
            text = self._inside(text, events) if self._body is not None else self._outside(text, events)
        return events

    def finish(self) -> list[Event]:
        rest = self._content.finish() if self._body is None else MARK + self._body
        self._body = None
        return [rest] if rest else []

    def _outside(self, text: str, events: list[Event]) -> str:
        content, after = self._content.push(text)
        if content:
            events.append(content)
        if after is None:
            return ""
        self._body, self._balance = "", None
        return after

    def _inside(self, text: str, events: list[Event]) -> str:
        """Reads up to the value's end; what follows it is outside again."""
        body = self._body = (self._body or "") + text
        if self._balance is None:
            start = value_start(body)
            if start is None:
                return ""
            self._balance, self._start, self._seen = Balance(), start, start
        size = self._balance.end(body[self._seen :])
        if size is None:
            self._seen = len(body)
            return ""
        end, self._body = self._seen + size, None
        events += self._read(body[: self._start], body[self._start : end])
        return body[end:]

    def _read(self, before: str, value: str) -> list[Event]:
        calls = named(before, value) if before.strip(BLANKS) else listed(value)
        if not calls:
            return [MARK + before + value]
        self._content.call_ended()
        first, self._calls = self._calls, self._calls + len(calls)
        return [CallPart(first + place, *call) for place, call in enumerate(calls)]


def value_start(body: str) -> int | None:
    """Where the JSON begins: an array right after the mark, or the object after a name."""
    if body.lstrip(BLANKS).startswith("["):
        return body.index("[")
    place = body.find("{")
    return place if place >= 0 else None


def named(before: str, arguments: str) -> list[tuple[str, str]]:
    name = before.partition(ARGUMENTS)[0].partition(CALL_ID)[0].strip(BLANKS)
    return [(name, arguments)] if name and isinstance(as_json(arguments), dict) else []


def listed(value: str) -> list[tuple[str, str]]:
    """All calls of an array (or of a lone object); none if one of them is no call."""
    calls = [function_of(part) for part in parts_of(value)]
    return [call for call in calls if call] if all(calls) else []


def parts_of(value: str) -> list[str]:
    """An array's objects as they were written."""
    if value.startswith("{"):
        return [value]
    if not isinstance(as_json(value), list):
        return []
    parts, position = [], value.find("{")
    while position >= 0:
        size = Balance().end(value[position:]) or 0
        parts.append(value[position : position + size])
        position = value.find("{", position + size)
    return parts
