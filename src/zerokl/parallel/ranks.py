"""Rank 0's view of the others: what it tells them, and how they end."""

from __future__ import annotations

import selectors
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from zerokl.errors import ConfigError, EngineError
from zerokl.parallel.channel import Channel, encode_plan, encode_setup
from zerokl.parallel.host_group import HostGroup
from zerokl.types import StepPlan

PEER_GONE = 75
"""Exit status of a rank that ends only because another has."""
END_S = 5.0


class Member(Protocol):
    """Another rank, wherever it runs."""

    def wait(self) -> object:
        """Until it has ended."""

    def cause(self) -> str | None:
        """How it ended, if it has, and for a reason of its own; follows "rank 1 of 2"."""

    def end(self, in_order: bool) -> None:
        """Its channel is closed: returns when it is gone, or has been told to go. `in_order`: this is no failure.

        Safe to call again.
        """


class Ranks:
    """Rank 0's place in a group, and the other members."""

    def __init__(self, group: HostGroup, members: Sequence[Member], channels: Sequence[Channel]) -> None:
        """One member and one channel for each other rank, in their order."""
        self.group = group
        self.members = members
        self._channels = channels
        self._closed = False

    def setup(self, setup: dict[str, Any]) -> None:
        """The same to each rank. Raises EngineError."""
        self._send(encode_setup(setup))

    def ready(self) -> list[dict[str, Any]]:
        """What each rank says when it is ready. Raises EngineError, ConfigError for what a rank finds wrong."""
        facts: dict[int, dict[str, Any]] = {}
        with selectors.DefaultSelector() as silent:
            for rank, channel in enumerate(self._channels, start=1):
                silent.register(channel, selectors.EVENT_READ, rank)
            while silent.get_map():
                # Whoever speaks first: the others may be waiting for one that is gone.
                for key, _ in silent.select():
                    silent.unregister(key.fileobj)
                    facts[key.data] = self._answer(key.data)
        return [facts[rank] for rank in sorted(facts)]

    def _answer(self, rank: int) -> dict[str, Any]:
        answer = self._channels[rank - 1].receive_answer()
        if answer is None:
            raise self.failure()
        if "error" in answer:
            self.close(in_order=False)
            raise ConfigError(f"rank {rank} of {self.group.size}: {answer['error']}")
        return answer

    def plan(self, plan: StepPlan) -> None:
        """The same plan to each rank. Raises EngineError."""
        self._send(encode_plan(plan))

    def _send(self, body: bytes) -> None:
        try:
            for channel in self._channels:
                channel.send(body)
        except OSError as error:
            raise self.failure() from error

    def failure(self) -> EngineError:
        """Which rank ended first, and how; all others are ended."""
        deadline = time.monotonic() + END_S
        while not (causes := self._causes()) and time.monotonic() < deadline:
            time.sleep(0.01)
        self.close(in_order=False)
        if not causes:
            return EngineError("a rank is gone")
        rank, cause = next(iter(causes.items()))
        return EngineError(f"rank {rank} of {self.group.size} {cause}")

    def _causes(self) -> dict[int, str]:
        found = {rank: member.cause() for rank, member in enumerate(self.members, start=1)}
        return {rank: cause for rank, cause in found.items() if cause is not None}

    def watch(self, died: Callable[[], object]) -> None:
        """Calls `died`, on a thread of its own, when a rank ends before `close`."""

        def wait(member: Member) -> None:
            member.wait()
            if not self._closed:
                died()

        for member in self.members:
            threading.Thread(target=wait, args=(member,), name="rank", daemon=True).start()

    def close(self, in_order: bool = True) -> None:
        """Ends the other ranks; not `in_order`: because of a failure. Safe to call again."""
        self._closed = True
        for channel in self._channels:
            channel.close()
        self.group.close()
        for member in self.members:
            member.end(in_order)
