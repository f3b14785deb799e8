"""A fake engine behind a socket, for the length of a test."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from zerokl.engine.fake import FakeOptions, fake_process
from zerokl.engine.fake_model import FakeModel, state_of
from zerokl.engine.process import EngineProcess
from zerokl.wire.client import EngineClient, Stream
from zerokl.wire.messages import Sampling
from zerokl.wire.records import Record

T = TypeVar("T")


class Running:
    """An engine process whose loop runs on a thread of the test."""

    def __init__(self, process: EngineProcess, path: Path) -> None:
        self.process = process
        self.path = path
        self.status: int | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self.status = self.process.run()

    def ended(self, timeout_s: float = 10.0) -> int | None:
        """Wait for the loop; its exit status."""
        self._thread.join(timeout_s)
        return self.status

    def ask(self, talk: Callable[[EngineClient], Awaitable[T]]) -> T:
        """One conversation with the engine."""

        async def connected() -> T:
            client = await EngineClient.connect(self.path)
            try:
                return await talk(client)
            finally:
                client.close()

        return asyncio.run(connected())


@contextmanager
def fake_engine(tmp_path: Path, **options: object) -> Iterator[Running]:
    """Started with these `FakeOptions`; told to end, if it hasn't, when the test is over."""
    path = tmp_path / "engine.sock"
    running = Running(fake_process(FakeOptions(**options), path), path)
    try:
        yield running
    finally:
        running.process.call(lambda: running.process.drain(0))
        assert running.ended() is not None


async def collected(stream: Stream) -> list[Record]:
    return [record async for record in stream]


def tokens_of(records: list[Record]) -> list[int]:
    return [token for record in records for token in record.tokens]


def text_of(records: list[Record]) -> str:
    return "".join(record.text for record in records)


GREEDY = Sampling(temperature=0.0)
PRINTABLE = FakeModel(259, range(32, 127))


def greedy(prompt: list[int], count: int) -> list[int]:
    """What the fake model says, asked directly."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(PRINTABLE.token_at(state_of(tokens), 0))
    return tokens[len(prompt) :]
