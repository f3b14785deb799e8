"""Hermes' form, also Qwen's: calls as JSON between tags, text around them.

    I'll look. <tool_call>
    {"name": "weather", "arguments": {"city": "Bern"}}
    </tool_call>

What stands between tags and is no call is content, tags included; a call whose closing tag never came counts.
"""

from __future__ import annotations

from zerokl.server.tools.calls import CallPart, Event, ToolParser, function_of
from zerokl.server.tools.content import Content

BEGIN, END = "<tool_call>", "</tool_call>"


class Hermes(ToolParser):
    """Calls may stand anywhere in the text, one after another."""

    def __init__(self) -> None:
        self._content = Content(BEGIN)
        self._body: str | None = None
        """What came after an opening tag; None outside."""
        self._searched = 0
        self._calls = 0

    def push(self, text: str) -> list[Event]:
        events: list[Event] = []
        while text:
            text = self._inside(text, events) if self._body is not None else self._outside(text, events)
        return events

    def finish(self) -> list[Event]:
        if self._body is None:
            rest = self._content.finish()
            return [rest] if rest else []
        return [self._read(self._body, closed="")]

    def _outside(self, text: str, events: list[Event]) -> str:
        content, after = self._content.push(text)
        if content:
            events.append(content)
        if after is None:
            return ""
        self._body, self._searched = "", 0
        return after

    def _inside(self, text: str, events: list[Event]) -> str:
        body = (self._body or "") + text
        place = body.find(END, self._searched)
        if place < 0:
            self._body, self._searched = body, max(len(body) - len(END) + 1, 0)
            return ""
        self._body = None
        events.append(self._read(body[:place], closed=END))
        return body[place + len(END) :]

    def _read(self, body: str, closed: str) -> Event:
        call = function_of(body)
        if call is None:
            return BEGIN + body + closed
        self._calls += 1
        self._content.call_ended()
        return CallPart(self._calls - 1, *call)
