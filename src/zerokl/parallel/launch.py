"""Starting the other ranks as processes of this machine, and telling how they end.

Each is `python -m MODULE`, which gets descriptors (the shared memory, a socket to each peer, its channel) and a setup
over the channel. When rank 0 ends, however it ends, the sockets close and the others end too.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys

from zerokl.parallel.channel import Channel
from zerokl.parallel.ranks import END_S, PEER_GONE, Ranks
from zerokl.parallel.shared import SharedGroup, all_pairs, shared_file

Address = tuple[str, int]


class Process:
    """A rank that is a child of this process. A `ranks.Member`."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait(self) -> None:
        self._process.wait()

    def cause(self) -> str | None:
        status = self._process.poll()
        if status in (None, 0, PEER_GONE):
            return None
        return f"was ended by signal {-status}" if status < 0 else f"ended with status {status}; its log says why"

    def end(self, in_order: bool) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def launch(size: int, module: str, port: int = 0) -> Ranks:
    """`size - 1` processes of the module, and this one as rank 0. `port`: where ranks on GPUs meet first."""
    descriptor = shared_file(size)
    ends, members, channels = all_pairs(size), [], []
    for rank in range(1, size):
        own, theirs = socket.socketpair()
        peers = {peer: end.fileno() for peer, end in ends[rank].items()}
        places = {"rank": rank, "memory": descriptor, "channel": theirs.fileno(), "peers": peers, "port": port}
        inherited = (descriptor, theirs.fileno(), *peers.values())
        command = [sys.executable, "-m", module, json.dumps(places)]
        members.append(Process(subprocess.Popen(command, pass_fds=inherited, start_new_session=True)))
        channels.append(Channel(own))
        for end in (theirs, *ends[rank].values()):
            end.close()
    group = SharedGroup(0, descriptor, ends[0])
    os.close(descriptor)
    return Ranks(group, members, channels)


def joined(places: str) -> tuple[SharedGroup, Channel, Address]:
    """A rank's side of `launch`, from its argument: its group, its channel, and where ranks on GPUs meet first."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is rank 0's to answer
    given = json.loads(places)
    peers = {int(peer): socket.socket(fileno=end) for peer, end in given["peers"].items()}
    group = SharedGroup(given["rank"], given["memory"], peers)
    os.close(given["memory"])
    return group, Channel(socket.socket(fileno=given["channel"])), ("127.0.0.1", given["port"])
