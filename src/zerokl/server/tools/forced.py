"""tool_choice "required" or a tool's name: a grammar that only a call fits, and the parser that reads it.

A named tool's answer is its arguments' JSON; "required" gives an array of calls, several where they may be.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from zerokl.errors import InvalidRequest
from zerokl.server.fields import message, shown
from zerokl.server.tools.balance import Balance
from zerokl.server.tools.calls import CallPart, Event, ToolParser, function_of
from zerokl.server.validate import Values
from zerokl.wire.messages import Grammar


class Named(ToolParser):
    """All text is the arguments of one call."""

    def __init__(self, name: str) -> None:
        self._name: str | None = name

    def push(self, text: str) -> list[Event]:
        if not text:
            return []
        name, self._name = self._name, None
        return [CallPart(0, name, text)]

    def finish(self) -> list[Event]:
        """An answer of no tokens still calls."""
        return [CallPart(0, self._name, "")] if self._name else []


class Required(ToolParser):
    """An array of calls, each given when it is complete. What was cut off, or is no call, is content."""

    def __init__(self) -> None:
        self._held = ""
        self._balance: Balance | None = None
        self._seen = 0
        self._calls = 0

    def push(self, text: str) -> list[Event]:
        self._held += text
        events: list[Event] = []
        while (event := self._next()) is not None:
            events.append(event)
        return events

    def finish(self) -> list[Event]:
        rest, self._held = self._held.lstrip("[, \t\r\n"), ""
        return [rest] if rest.strip("] \t\r\n") else []

    def _next(self) -> Event | None:
        if self._balance is None:
            start = self._held.find("{")
            if start < 0:
                return None
            self._held, self._balance, self._seen = self._held[start:], Balance(), 0
        size = self._balance.end(self._held[self._seen :])
        if size is None:
            self._seen = len(self._held)
            return None
        end, self._balance = self._seen + size, None
        written, self._held = self._held[:end], self._held[end:]
        call = function_of(written, ("parameters",))
        if call is None:
            return written
        self._calls += 1
        return CallPart(self._calls - 1, *call)


def forced_name(values: Values) -> str | None:
    """The tool that must be called, "" for any; None where none is forced. Raises InvalidRequest."""
    choice = values["tool_choice"]
    if choice in (None, "auto", "none"):
        return None
    name = named_in(choice)
    if name is None:
        raise refused("tool_choice", value=shown(choice))
    if not values["tools"]:
        raise refused("tool_choice_needs", value=shown(choice))
    names = [one["name"] for one in functions_of(values["tools"])]
    if name and name not in names:
        raise refused("tool_unknown", value=shown(name), names=", ".join(names))
    return name


def named_in(choice: Any) -> str | None:
    """The tool's name, "" for "required"; None if the choice is none of the forms."""
    if isinstance(choice, str):
        return "" if choice == "required" else None
    function = choice.get("function") if choice.get("type") == "function" else None
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) and name else None


def refused(key: str, **values: Any) -> InvalidRequest:
    return InvalidRequest(message(key, **values), param="tool_choice")


def functions_of(tools: Sequence[Any]) -> list[dict[str, Any]]:
    """What a grammar needs of each tool: a name and, if there are any, parameters."""
    for place, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) else None
        good = isinstance(function, dict) and isinstance(function.get("name"), str) and function["name"]
        if not good or not isinstance(function.get("parameters") or {}, dict):  # type: ignore[union-attr]
            raise InvalidRequest(message("tool_shape", position=place, value=shown(tool)), param="tools")
    return [tool["function"] for tool in tools]


def forced_parser(name: str) -> ToolParser:
    return Named(name) if name else Required()


def forced_grammar(name: str, tools: Sequence[Any], parallel: bool) -> Grammar:
    """For the one named, or for an array of calls of any."""
    functions = functions_of(tools)
    if name:
        parameters = next(parameters_of(function) for function in functions if function["name"] == name)
        return Grammar("json_schema", orjson.dumps(parameters).decode())
    schema: dict[str, Any] = {
        "$defs": {f"tool_{i}": moved(parameters_of(one), f"#/$defs/tool_{i}") for i, one in enumerate(functions)},
        "type": "array",
        "minItems": 1,
        "items": {"anyOf": [call_schema(one["name"], f"#/$defs/tool_{i}") for i, one in enumerate(functions)]},
    }
    if not parallel:
        schema["maxItems"] = 1
    return Grammar("json_schema", orjson.dumps(schema).decode())


def parameters_of(function: dict[str, Any]) -> dict[str, Any]:
    """A tool without parameters is called with an empty object."""
    return function.get("parameters") or {"type": "object", "properties": {}, "additionalProperties": False}


def call_schema(name: str, parameters: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"name": {"const": name}, "parameters": {"$ref": parameters}},
        "required": ["name", "parameters"],
        "additionalProperties": False,
    }


def moved(schema: Any, place: str) -> Any:
    """A schema whose references to itself are right at its new place."""
    if isinstance(schema, list):
        return [moved(one, place) for one in schema]
    if not isinstance(schema, dict):
        return schema
    reference = schema.get("$ref")
    own = isinstance(reference, str) and reference.startswith("#")
    return {key: place + value[1:] if own and key == "$ref" else moved(value, place) for key, value in schema.items()}
