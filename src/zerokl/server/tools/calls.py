"""What a parser makes of a text: content, and parts of tool calls.

A parser is shown the text as it comes, in whatever pieces; joined, what it gives is the same for all cuts. A call is
given when it is complete, so that what looked like one and isn't can still be content.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from zerokl.server.validate import MAX_DEPTH, depth_of

BLANKS = " \t\r\n"
"""JSON's."""


@dataclass(frozen=True, slots=True)
class CallPart:
    """The beginning of a call, or more of its arguments."""

    index: int
    name: str | None
    """Given where the call begins."""
    arguments: str


Event = str | CallPart


class ToolParser:
    """One choice's text. A subclass says how calls are written."""

    shows_special: ClassVar[bool] = False
    """Its marks are special tokens, which must stay in the text."""
    id_digits: ClassVar[int] = 24
    """Length of a call's id after its prefix."""

    def push(self, text: str) -> list[Event]:
        """What is certain with this text."""
        raise NotImplementedError

    def finish(self) -> list[Event]:
        """What was held back."""
        raise NotImplementedError


class PlainText(ToolParser):
    """No tools: all is content."""

    def push(self, text: str) -> list[Event]:
        return [text] if text else []

    def finish(self) -> list[Event]:
        return []


def call_id(answer: str, choice: int, index: int, digits: int) -> str:
    """A function of the answer's id and the call's place. Mistral's templates take nine letters or digits."""
    digest = hashlib.blake2b(f"{answer} {choice} {index}".encode()).hexdigest()
    return digest[:digits] if digits < 10 else "call_" + digest[:digits]


def function_of(text: str, arguments_names: Sequence[str] = ("arguments", "parameters")) -> tuple[str, str] | None:
    """(name, arguments as they were written) of a JSON object that is a call; None if it is none."""
    members = members_of(text)
    name = as_json(members.get("name", ""))
    raw = next((members[key] for key in arguments_names if key in members), None)
    if not isinstance(name, str) or not name or raw is None:
        return None
    value = as_json(raw)
    if not is_unicode(name):
        return None
    if isinstance(value, str):  # some models write the arguments' JSON as a string
        return (name, value) if is_unicode(value) and isinstance(as_json(value), dict) else None
    return (name, raw) if isinstance(value, dict) else None


def members_of(text: str) -> dict[str, str]:
    """An object's members, each as it was written; none if the text isn't one object."""
    text = text.strip(BLANKS)
    if not isinstance(as_json(text), dict):
        return {}
    members: dict[str, str] = {}
    position = skip_blanks(text, 1)
    while text[position] != "}":
        key, position = DECODER.raw_decode(text, position)
        position = skip_blanks(text, skip_blanks(text, position) + 1)  # past the colon
        _, end = DECODER.raw_decode(text, position)
        members[key] = text[position:end]
        position = skip_blanks(text, end)
        if text[position] == ",":
            position = skip_blanks(text, position + 1)
    return members


def skip_blanks(text: str, position: int) -> int:
    while position < len(text) and text[position] in BLANKS:
        position += 1
    return position


def as_json(text: str) -> Any:
    """None for what isn't JSON, or is deeper than a request may be."""
    if not is_unicode(text) or depth_of(text.encode()) > MAX_DEPTH:
        return None
    try:
        return DECODER.decode(text)
    except (ValueError, RecursionError):
        return None


def is_unicode(text: str) -> bool:
    """JSON's escapes can spell half a surrogate pair, which no answer can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


DECODER = json.JSONDecoder(parse_constant=refuse)
