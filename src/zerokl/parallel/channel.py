"""What rank 0 tells the others: a config at the start, then plans. One socket for each rank, u32 length and a body.

Only what moves a page, a token or a row goes along: seeds, penalties, grammars and biases stay with rank 0, which
draws.
"""

from __future__ import annotations

import contextlib
import hashlib
import socket
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from zerokl.types import SamplingParams, Segment, StepPlan

DRAWN = SamplingParams()
"""Stands for the parameters of a row that is drawn from: the other ranks only have to make its logits."""


class Message(Struct, frozen=True):
    """One of the two is there, or neither: then the rank is to end."""

    setup: dict[str, Any] | None = None
    plan: StepPlan | None = None


class Channel:
    """One end of a socket between rank 0 and another."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._decoder = msgspec.msgpack.Decoder(Message)
        self._answers = msgspec.msgpack.Decoder(dict[str, Any])

    def fileno(self) -> int:
        """To wait for several with."""
        return self._connection.fileno()

    def send(self, body: bytes) -> None:
        """Raises OSError if the other end is gone."""
        self._connection.sendall(len(body).to_bytes(4, "little") + body)

    def receive(self) -> Message:
        """What rank 0 says next; the empty message if it is gone."""
        body = self._body()
        return Message() if body is None else self._decoder.decode(body)

    def receive_answer(self) -> dict[str, Any] | None:
        """What a rank says once: that it is ready, or why it isn't. None if it is gone."""
        body = self._body()
        return None if body is None else self._answers.decode(body)

    def answer(self, **facts: Any) -> None:
        self.send(msgspec.msgpack.encode(facts))

    def close(self) -> None:
        """The other end hears of it, though a process that this one has forked may hold a copy of the socket."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _body(self) -> bytes | None:
        head = self._exactly(4)
        return None if head is None else self._exactly(int.from_bytes(head, "little"))

    def _exactly(self, count: int) -> bytes | None:
        """None if the other end closes first."""
        body = bytearray()
        while len(body) < count:
            try:
                piece = self._connection.recv(min(count - len(body), 1 << 20))
            except OSError:
                return None
            if not piece:
                return None
            body += piece
        return bytes(body)


def encode_setup(setup: dict[str, Any]) -> bytes:
    return msgspec.msgpack.encode(Message(setup=setup))


def encode_plan(plan: StepPlan) -> bytes:
    """Rank 0's plan without what only rank 0 needs."""
    return msgspec.msgpack.encode(Message(plan=replace(plan, segments=tuple(map(bare, plan.segments)))))


def bare(segment: Segment) -> Segment:
    return replace(
        segment,
        tokens=list(segment.tokens),
        pages=list(segment.pages),
        targets=list(segment.targets),
        sample=None if segment.sample is None else DRAWN,
        history=None,
        scored_as=None,
        mask=None,
    )


def digest(plan: StepPlan) -> bytes:
    """32 bytes, equal for equal plans, sent or received."""
    return hashlib.sha256(encode_plan(plan)).digest()
