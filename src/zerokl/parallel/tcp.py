"""Ranks of several machines that send each other their parts: the CPU's group, and what GPUs compare plans with.

    a round    u32 length and part to every peer, each by a thread ─▶ the same from every peer ─▶ read all slots

Threads send while this one receives, so two ranks whose parts fill the network's buffers don't wait for each other.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from zerokl.errors import EngineError
from zerokl.parallel.host_group import F32, SLOT_FLOATS, HostGroup, PeerGone, gone

SILENT_S, PROBES = 10, 6
"""A machine that is gone sends nothing, not even an end: it is asked after so many seconds, so many times."""


class TcpGroup(HostGroup):
    """Ranks with a connection to each other. Bytes travel as they are: all machines are little-endian."""

    shares_files = False

    def __init__(
        self,
        rank: int,
        peers: Mapping[int, socket.socket],
        local_rank: int = 0,
        local_size: int = 1,
        slot_floats: int = SLOT_FLOATS,
    ) -> None:
        self.rank, self.size, self.slot_floats = rank, len(peers) + 1, slot_floats
        self.local_rank, self.local_size = local_rank, local_size
        self._peers = dict(sorted(peers.items()))
        self._slots = np.zeros((self.size, slot_floats), "<f4")
        self._senders = ThreadPoolExecutor(max(1, len(peers)), "parts")
        for connection in peers.values():
            at_once_and_watched(connection)

    def _meet(self, part: F32 | None) -> F32:
        size = 0 if part is None else part.size
        if part is not None:
            self._slots[self.rank, :size] = part.reshape(-1)
        body = (4 * size).to_bytes(4, "little") + self._slots[self.rank, :size].tobytes()
        try:
            sent = {peer: self._senders.submit(connection.sendall, body) for peer, connection in self._peers.items()}
        except RuntimeError as error:  # another thread has closed the group
            raise PeerGone("a rank is gone") from error
        for peer, connection in self._peers.items():
            self._take(peer, connection)
        for peer, sending in sent.items():
            try:
                sending.result()
            except OSError as error:
                raise gone(peer, self.size) from error
        return self._slots

    def _take(self, peer: int, connection: socket.socket) -> None:
        """A part into its rank's slot."""
        head = bytearray(4)
        self._fill(peer, connection, memoryview(head))
        length = int.from_bytes(head, "little")
        if length > 4 * self.slot_floats:
            raise EngineError(f"rank {peer} of {self.size} sends a part of {length} bytes, longer than a slot")
        self._fill(peer, connection, memoryview(self._slots[peer]).cast("B")[:length])

    def _fill(self, peer: int, connection: socket.socket, room: memoryview) -> None:
        while room:
            try:
                count = connection.recv_into(room)
            except OSError as error:
                raise gone(peer, self.size) from error
            if not count:
                raise gone(peer, self.size)
            room = room[count:]

    def close(self) -> None:
        for connection in self._peers.values():
            with contextlib.suppress(OSError):  # wakes a thread that still sends
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        self._senders.shutdown()


def at_once_and_watched(connection: socket.socket) -> None:
    """Small messages aren't held back, and the end of a machine that can't say so is seen within a minute or so."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", SILENT_S), ("TCP_KEEPINTVL", SILENT_S), ("TCP_KEEPCNT", PROBES)):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
