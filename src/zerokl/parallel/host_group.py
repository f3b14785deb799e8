"""What ranks on CPUs do with the parts of a sum, however the parts come to them.

Each rank has a slot. Parts larger than a slot take several rounds. What is added to what depends on the ranks' numbers
alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from zerokl import _native
from zerokl.errors import EngineError

F32 = NDArray[np.float32]

SLOT_FLOATS = 1 << 20
"""Of one rank: 4 MB, so the sum of 512 rows of 2,048 in one round. Free."""


class PeerGone(EngineError):
    """Another rank has ended; why is its own to say."""


class HostGroup(ABC):
    """An `ops.Group`. Not safe for several threads: all ranks must make the same calls in the same order."""

    rank: int
    size: int
    local_rank: int
    """Among the ranks of this machine, and `local_size`: how many these are."""
    local_size: int
    slot_floats: int
    shares_files: bool
    """All ranks read the same folder."""

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
        slot = self.slot_floats
        for first in range(0, max(one.size for one in flat), slot):
            slots = self._meet(own[first : first + slot])
            for rank, one in enumerate(flat):
                piece = one[first : first + slot]
                piece[:] = slots[rank, : piece.size]
        return parts

    def agree(self, what: bytes) -> bool:
        """Whether every rank says the same 32 bytes. Raises PeerGone."""
        words = np.frombuffer(what, np.uint16).astype(np.float32)[None]
        return all(np.array_equal(one, words) for one in self.gather(words, [words.shape] * self.size))

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def _meet(self, part: F32 | None) -> F32:
        """Shows a part to every rank. All slots, [ranks, slot]; a round later they are other ranks' to write."""

    def _rows_per_round(self, rows: int, width: int) -> Iterator[tuple[int, int]]:
        at_a_time = self.slot_floats // max(1, width)
        if not at_a_time:
            raise EngineError(f"a row of {width} is longer than a rank's slot of {self.slot_floats}")
        return ((first, min(first + at_a_time, rows)) for first in range(0, rows, at_a_time))


def gone(rank: int, size: int) -> PeerGone:
    return PeerGone(f"rank {rank} of {size} is gone")
