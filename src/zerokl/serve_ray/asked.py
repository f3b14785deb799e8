"""A request on its way to a replica, with the text that Ray's router compares prefixes of. No Ray."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

HOP_BY_HOP = frozenset({"connection", "content-length", "host", "keep-alive", "transfer-encoding", "upgrade"})
"""Of one connection: each hop has its own."""


@dataclass(frozen=True, slots=True)
class Asked:
    method: str
    target: str
    """Path and query."""
    headers: tuple[tuple[str, str], ...]
    body: bytes
    prompt: str
    """What the router looks at; nobody else does. Never empty."""


def asked(method: str, target: str, headers: Sequence[tuple[str, str]], body: bytes) -> Asked:
    kept = tuple((name, value) for name, value in headers if name.lower() not in HOP_BY_HOP)
    return Asked(method, target, kept, body, prompt_of(body) or target)  # Ray's router divides by its length


def prompt_of(body: bytes) -> str:
    """The text, ids or messages that a request brings, as one text whose prefixes are theirs; "" if it brings none."""
    try:
        fields = orjson.loads(body) if body else None
    except orjson.JSONDecodeError:
        return ""
    if not isinstance(fields, dict):
        return ""
    for name in ("messages", "prompt", "text", "input_ids"):
        if fields.get(name):
            return text_of(fields[name])
    return ""


def text_of(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return f"{value.get('role', '')}: {text_of(value.get('content') or '')}\n"
    if isinstance(value, list):
        return "".join(text_of(part) if isinstance(part, str | dict | list) else f"{part} " for part in value)
    return str(value)
