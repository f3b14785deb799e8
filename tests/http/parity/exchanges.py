"""One request as raw bytes and its answer as a client sees it: status, our headers, and each chunk or the body."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.http.raw import Raw, connect

PATIENCE_S = 100.0
"""For a real model on a busy machine."""
NOT_COMPARED = ("connection", "date", "keep-alive", "transfer-encoding")


@dataclass(frozen=True, slots=True)
class Case:
    """A request, and one line that says what it is for."""

    why: str
    method: str
    path: str
    body: Any = None
    """JSON, or bytes that are sent as they are."""
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def raw_body(self) -> bytes:
        if self.body is None:
            return b""
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: tuple[str, ...]
    """The chunks of a stream; else one part."""


def exchanged(url: str, case: Case) -> Answer:
    """The answer to a case, on a connection of its own."""
    raw = connect(url)
    raw.socket.settimeout(PATIENCE_S)
    try:
        raw.send(case.method, case.path, case.raw_body, **dict(case.headers))
        raw.read_head()
        return answer_of(raw, case.method)
    finally:
        raw.close()


def answer_of(raw: Raw, method: str) -> Answer:
    headers = {name: value for name, value in sorted(raw.headers.items()) if name not in NOT_COMPARED}
    if "transfer-encoding" in raw.headers:
        parts = [chunk.decode("utf-8", "surrogateescape") for chunk in raw.chunks()]
    else:
        parts = [] if method == "HEAD" else [raw.read_body().decode("utf-8", "surrogateescape")]
    return Answer(raw.status, headers, tuple(part for part in parts if part))
