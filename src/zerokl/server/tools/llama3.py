"""Llama 3's form: the whole answer is JSON, one object or several with semicolons between.

    <|python_tag|>{"name": "weather", "parameters": {"city": "Bern"}}; {"name": "time", "parameters": {}}

An answer that begins otherwise is content, and so is everything from the first object on that is no call.
"""

from __future__ import annotations

from typing import ClassVar

from zerokl.server.tools.balance import Balance
from zerokl.server.tools.calls import CallPart, Event, ToolParser, function_of

TAG = "<|python_tag|>"
BETWEEN = " \t\r\n;"


class Llama3(ToolParser):
    """Reads calls until something else comes, then only passes on."""

    shows_special: ClassVar[bool] = True

    def __init__(self) -> None:
        self._held = ""
        """What may still be a call, with the blanks and semicolons before it."""
        self._balance: Balance | None = None
        self._seen = 0
        self._reading = True
        self._calls = 0

    def push(self, text: str) -> list[Event]:
        if not self._reading:
            return [text] if text else []
        self._held += text
        events: list[Event] = []
        while self._reading and (call := self._next_call()):
            events.append(call)
        if not self._reading:
            events += self.finish()
        return events

    def finish(self) -> list[Event]:
        """An object that was cut off is content; blanks after a call are nothing."""
        rest, self._held = self._held, ""
        if self._calls and not rest.strip(BETWEEN):
            return []
        return [rest] if rest else []

    def _next_call(self) -> CallPart | None:
        start = self._start()
        if start is None:
            return None
        if self._balance is None:
            self._balance, self._seen = Balance(), start
        size = self._balance.end(self._held[self._seen :])
        if size is None:
            self._seen = len(self._held)
            return None
        end, self._balance = self._seen + size, None
        call = function_of(self._held[start:end], ("parameters", "arguments"))
        if call is None:
            self._reading = False
            return None
        self._held = self._held[end:]
        self._calls += 1
        return CallPart(self._calls - 1, *call)

    def _start(self) -> int | None:
        """Where the object begins; None if it hasn't yet. Anything else ends the reading."""
        blanks = BETWEEN if self._calls else BETWEEN[:-1]
        rest = self._held.lstrip(blanks)
        if rest.startswith(TAG):
            rest = rest[len(TAG) :].lstrip(blanks)
        if rest and not rest.startswith("{") and not TAG.startswith(rest):
            self._reading = False
        return len(self._held) - len(rest) if rest.startswith("{") else None
