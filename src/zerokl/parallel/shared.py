"""Ranks of one machine that meet in shared memory: the group of the CPU.

    memory     | half 0: slot of rank 0 | slot 1 | ... | half 1: slot 0 | ... |
    a round    write your slot ─▶ a byte to every peer ─▶ a byte from every peer ─▶ read all slots

Rounds use the halves in turn. A rank writes to a half again two rounds later, and then every peer has sent the byte of
the round in between, which it does after it has read; so one exchange of bytes per round is enough. Bytes go through
sockets: waiting costs nothing, however few cores there are, and the end of a peer is seen at once, in any state.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
import sys
import tempfile
from collections.abc import Mapping

import numpy as np

from zerokl.parallel.host_group import F32, SLOT_FLOATS, HostGroup, gone


def shared_file(ranks: int, slot_floats: int = SLOT_FLOATS) -> int:
    """A descriptor of memory for so many ranks. It has no name, so nothing of it outlives the processes."""
    if sys.platform == "linux":
        descriptor = os.memfd_create("zerokl-ranks")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, 2 * ranks * slot_floats * 4)
    return descriptor


def all_pairs(ranks: int) -> list[dict[int, socket.socket]]:
    """For each rank, its end of a socket to every peer."""
    ends: list[dict[int, socket.socket]] = [{} for _ in range(ranks)]
    for one in range(ranks):
        for other in range(one):
            ends[one][other], ends[other][one] = socket.socketpair()
    return ends


class SharedGroup(HostGroup):
    """Ranks that are processes of one machine."""

    shares_files = True

    def __init__(
        self, rank: int, descriptor: int, peers: Mapping[int, socket.socket], slot_floats: int = SLOT_FLOATS
    ) -> None:
        """`descriptor`: as `shared_file` gives it; it is not closed here."""
        self.rank = self.local_rank = rank
        self.size = self.local_size = len(peers) + 1
        self.slot_floats = slot_floats
        self._peers = dict(sorted(peers.items()))
        memory = mmap.mmap(descriptor, 2 * self.size * slot_floats * 4)
        self._slots = np.frombuffer(memory, np.float32).reshape(2, self.size, slot_floats)
        self._round = 0

    def _meet(self, part: F32 | None) -> F32:
        slots: F32 = self._slots[self._round % 2]
        self._round += 1
        if part is not None:
            slots[self.rank, : part.size] = part.reshape(-1)
        for peer, connection in self._peers.items():
            try:
                connection.sendall(b"\0")
            except OSError as error:
                raise gone(peer, self.size) from error
        for peer, connection in self._peers.items():
            try:
                said = connection.recv(1)
            except OSError as error:
                raise gone(peer, self.size) from error
            if not said:
                raise gone(peer, self.size)
        return slots

    def close(self) -> None:
        for connection in self._peers.values():
            with contextlib.suppress(OSError):  # a forked process may hold a copy
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
