"""Ranks of one machine that meet in shared memory: the group of the CPU.

    memory     | half 0: slot of rank 0 | slot 1 | ... | half 1: slot 0 | ... |
    a round    write your slot ─▶ a byte to every peer ─▶ a byte from every peer ─▶ read all slots

Rounds use the halves in turn. A rank writes to a half again two rounds later, and then every peer has sent the byte of
the round in between, which it does after it has read; so one exchange of bytes per round is enough. Bytes go through
sockets: waiting costs nothing, however few cores there are, and the end of a peer is seen at once, in any state.

Parts larger than a slot take several rounds. What is added to what depends on the ranks' numbers alone.
"""

from __future__ import annotations

import mmap
import os
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from zerokl import _native
from zerokl.errors import EngineError

F32 = NDArray[np.float32]

SLOT_FLOATS = 1 << 20
"""Of one rank: 4 MB, so the sum of 512 rows of 2,048 in one round. Free."""


class PeerGone(EngineError):
    """Another rank has ended; why is its own to say."""


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


class SharedGroup:
    """An `ops.Group`. Not safe for several threads: all ranks must make the same calls in the same order."""

    def __init__(
        self, rank: int, descriptor: int, peers: Mapping[int, socket.socket], slot_floats: int = SLOT_FLOATS
    ) -> None:
        """`descriptor`: as `shared_file` gives it; it is not closed here."""
        self.rank, self.size = rank, len(peers) + 1
        self._peers = dict(sorted(peers.items()))
        memory = mmap.mmap(descriptor, 2 * self.size * slot_floats * 4)
        self._slots = np.frombuffer(memory, np.float32).reshape(2, self.size, slot_floats)
        self._round = 0

    def fold(self, part: F32 | None, shape: tuple[int, int], count: int, bias: F32 | None, residual: F32 | None) -> F32:
        """As `ops.Group` says. Raises PeerGone."""
        rows, width = shape
        out = np.empty(shape, np.float32)
        for first, last in self._rows_per_round(rows, width):
            size = (last - first) * width
            own = None if part is None else part[first:last]
            slots = self._meet(own)
            parts = [slots[rank, :size].reshape(-1, width) for rank in range(count)]
            _native.fold(parts, bias, None if residual is None else residual[first:last], out[first:last])
        return out

    def gather(self, part: F32, shapes: Sequence[tuple[int, int]]) -> list[F32]:
        """As `ops.Group` says. Raises PeerGone."""
        parts = [np.empty(shape, np.float32) for shape in shapes]
        flat, own = [one.reshape(-1) for one in parts], part.reshape(-1)
        slot = self._slots.shape[2]
        for first in range(0, max(one.size for one in flat), slot):
            slots = self._meet(own[first : first + slot])
            for rank, one in enumerate(flat):
                piece = one[first : first + slot]
                piece[:] = slots[rank, : piece.size]
        return parts

    def agree(self, what: bytes) -> bool:
        """Whether every rank says the same 32 bytes."""
        words = np.frombuffer(what, np.uint16).astype(np.float32)[None]
        return all(np.array_equal(one, words) for one in self.gather(words, [words.shape] * self.size))

    def _rows_per_round(self, rows: int, width: int) -> Iterator[tuple[int, int]]:
        at_a_time = self._slots.shape[2] // max(1, width)
        if not at_a_time:
            raise EngineError(f"a row of {width} is longer than a rank's slot of shared memory")
        return ((first, min(first + at_a_time, rows)) for first in range(0, rows, at_a_time))

    def _meet(self, part: F32 | None) -> F32:
        """Shows a part to every rank, and gives everybody's slots, which stay until the round after the next."""
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
            connection.close()


def gone(rank: int, size: int) -> PeerGone:
    return PeerGone(f"rank {rank} of {size} is gone")
