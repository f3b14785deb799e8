"""Starting the other ranks, and telling how they end.

Each is a process of its own, `python -m MODULE`, which gets descriptors (the shared memory, a socket to each peer, its
channel) and a setup over the channel. When rank 0 ends, however it ends, the sockets close and the others end too.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from zerokl.errors import ConfigError, EngineError
from zerokl.parallel.channel import Channel, encode_plan, encode_setup
from zerokl.parallel.shared import SharedGroup, all_pairs, shared_file
from zerokl.types import StepPlan

PEER_GONE = 75
"""Exit status of a rank that ends only because another has."""
END_S = 5.0


class Ranks:
    """Rank 0's view of a group: its own place in it, and the processes of the others."""

    def __init__(self, group: SharedGroup, processes: list[subprocess.Popen[bytes]], channels: list[Channel]) -> None:
        self.group = group
        self._processes = processes
        self._channels = channels
        self._closed = False

    def setup(self, setup: dict[str, Any]) -> None:
        """The same to each rank. Raises EngineError."""
        self._send(encode_setup(setup))

    def ready(self) -> list[dict[str, Any]]:
        """What each rank says when it is ready. Raises EngineError, ConfigError for what a rank finds wrong."""
        facts = []
        for rank, channel in enumerate(self._channels, start=1):
            answer = channel.receive_answer()
            if answer is None:
                raise self.failure()
            if "error" in answer:
                self.close()
                raise ConfigError(f"rank {rank} of {self.group.size}: {answer['error']}")
            facts.append(answer)
        return facts

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
        while all(ended_by_itself(p) is None for p in self._processes) and time.monotonic() < deadline:
            time.sleep(0.01)
        causes = {
            rank: status
            for rank, process in enumerate(self._processes, start=1)
            if (status := ended_by_itself(process)) is not None
        }
        self.close()
        if not causes:
            return EngineError("a rank is gone")
        rank, status = next(iter(causes.items()))
        how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}; its log says why"
        return EngineError(f"rank {rank} of {self.group.size} {how}")

    def watch(self, died: Callable[[], object]) -> None:
        """Calls `died`, on a thread of its own, when a rank ends before `close`."""

        def wait(process: subprocess.Popen[bytes]) -> None:
            process.wait()
            if not self._closed:
                died()

        for process in self._processes:
            threading.Thread(target=wait, args=(process,), name="rank", daemon=True).start()

    def close(self) -> None:
        """Ends the other ranks. Safe to call again."""
        self._closed = True
        for channel in self._channels:
            channel.close()
        self.group.close()
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_S)
            if process.poll() is None:
                process.kill()
                process.wait()

    @property
    def process_ids(self) -> list[int]:
        return [process.pid for process in self._processes]


def ended_by_itself(process: subprocess.Popen[bytes]) -> int | None:
    """The exit status of a process that has ended for a reason of its own."""
    status = process.poll()
    return None if status in (None, 0, PEER_GONE) else status


def launch(size: int, module: str, port: int = 0) -> Ranks:
    """`size - 1` processes of the module, and this one as rank 0. `port`: where ranks on GPUs meet first."""
    descriptor = shared_file(size)
    ends, processes, channels = all_pairs(size), [], []
    for rank in range(1, size):
        own, theirs = socket.socketpair()
        peers = {peer: end.fileno() for peer, end in ends[rank].items()}
        places = {"rank": rank, "memory": descriptor, "channel": theirs.fileno(), "peers": peers, "port": port}
        inherited = (descriptor, theirs.fileno(), *peers.values())
        processes.append(
            subprocess.Popen(
                [sys.executable, "-m", module, json.dumps(places)], pass_fds=inherited, start_new_session=True
            )
        )
        channels.append(Channel(own))
        for end in (theirs, *ends[rank].values()):
            end.close()
    group = SharedGroup(0, descriptor, ends[0])
    os.close(descriptor)
    return Ranks(group, processes, channels)


def joined(places: str) -> tuple[SharedGroup, Channel, int]:
    """A rank's side of `launch`, from its argument: its group, its channel, and the port."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is rank 0's to answer
    given = json.loads(places)
    peers = {int(peer): socket.socket(fileno=end) for peer, end in given["peers"].items()}
    group = SharedGroup(given["rank"], given["memory"], peers)
    os.close(given["memory"])
    return group, Channel(socket.socket(fileno=given["channel"])), given["port"]
