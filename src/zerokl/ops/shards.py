"""Weights of which a rank has a part, and how ranks meet: the same bits for every number of ranks.

    inputs       linear's K is cut in leaves, each a chain; a rank has neighbouring leaves   ─▶ the tree over all leaves
    vocabulary   whole blocks of ids: an embedding's rows, a head's outputs                  ─▶ side by side

The order of the tree depends on the leaves alone (`cut`), never on how many ranks share them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from msgspec import Struct

from zerokl.errors import EngineError, ShapeError
from zerokl.ops import cpu
from zerokl.ops.device import gpu, on_gpu
from zerokl.ops.kv import F32, I32, check_array
from zerokl.ops.matrix import DeviceExperts, DeviceMatrix, LeafExperts, Matrix, PackedLeaves, PackedMatrix, host
from zerokl.ops.score import BLOCK

STEP = 16
"""Frozen: leaves end at multiples of this. A matrix unit's step on a GPU; a panel of outputs on the CPU."""


def cut(length: int, unit: int, leaves: int) -> list[int]:
    """[leaves + 1]: where leaves begin and end. Units are dealt in order, the first leaves take one more; the last unit
    may be short, and where there are fewer units than leaves the last leaves are empty.
    """
    units = -(-length // unit)
    each, more = divmod(units, leaves)
    ends = (min(length, (leaf * each + min(leaf, more)) * unit) for leaf in range(leaves + 1))
    return list(ends)


class Group(Protocol):
    """The ranks of one model. Every rank makes the same calls in the same order."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...

    def fold(self, part: F32 | None, shape: tuple[int, int], count: int, bias: F32 | None, residual: F32 | None) -> F32:
        """The parts of the first `count` ranks by the balanced tree in f32, then + bias, + residual: on every rank.

        The other ranks have no part.
        """

    def gather(self, part: F32, shapes: Sequence[tuple[int, int]]) -> list[F32]:
        """Every rank's part, in the order of ranks; all know all shapes."""


class InputShard(Struct, frozen=True, eq=False):
    """Some of the columns of a weight [N, K]: a part of each output's sum."""

    matrix: Matrix | DeviceMatrix | DeviceExperts | LeafExperts | PackedMatrix | PackedLeaves
    group: Any
    """A `Group`; on GPUs a `parallel.peers.PeerGroup`."""
    count: int
    """How many ranks have columns at all: the first ones."""

    @property
    def shape(self) -> tuple[int, int]:
        return self.matrix.shape

    @property
    def dtype(self) -> str:
        return self.matrix.dtype

    @property
    def nbytes(self) -> int:
        return self.matrix.nbytes

    @property
    def is_empty(self) -> bool:
        return bool(self.group.rank >= self.count)

    def linear(self, x: F32, bias: F32 | None, residual: F32 | None, wide: bool = False) -> F32:
        if on_gpu(x):
            return gpu().summed(x, self, bias, residual, wide)  # type: ignore[no-any-return]
        outputs, depth = self.matrix.shape
        shape = (len(x), outputs)
        check_array("x", x, np.float32, (len(x) if x.ndim == 2 else 0, depth))
        part = None if self.is_empty else cpu.linear(x, host(self.matrix), None, None)
        return self.group.fold(part, shape, self.count, bias, residual)  # type: ignore[no-any-return]


class VocabularyShard(Struct, frozen=True, eq=False):
    """Some of the rows of a weight [N, K]: whole blocks of 1,024 ids."""

    matrix: Matrix | DeviceMatrix | PackedMatrix
    group: Any
    """As an `InputShard`'s."""
    bounds: tuple[int, ...]
    """[ranks + 1]: rank r has the ids bounds[r] .. bounds[r + 1] - 1."""

    @property
    def shape(self) -> tuple[int, int]:
        """Of the whole."""
        return self.bounds[-1], self.matrix.shape[1]

    @property
    def dtype(self) -> str:
        return self.matrix.dtype

    @property
    def nbytes(self) -> int:
        """Of this rank's part."""
        return self.matrix.nbytes

    def embedding(self, ids: I32) -> F32:
        """[T, K]: each row comes from the rank that has it, and nothing is added."""
        if on_gpu(ids):
            return gpu().rows_of_ranks(self, ids)  # type: ignore[no-any-return]
        if ids.size and not (ids.min() >= 0 and ids.max() < self.bounds[-1]):
            raise EngineError(f"id {ids.max() if ids.min() >= 0 else ids.min()} is not one of {self.bounds[-1]}")
        owners = np.searchsorted(np.array(self.bounds[1:]), ids, side="right")
        width, rank = self.matrix.shape[1], self.group.rank
        own = cpu.embedding(host(self.matrix), (ids[owners == rank] - np.int32(self.bounds[rank])).astype(np.int32))
        counts = np.bincount(owners, minlength=self.group.size).tolist()
        parts = self.group.gather(own, [(count, width) for count in counts])
        rows = np.empty((len(ids), width), np.float32)
        for owner, part in enumerate(parts):
            rows[owners == owner] = part
        return rows

    def linear(self, x: F32, bias: F32 | None, residual: F32 | None) -> F32:
        """[T, N]: the ranks' outputs side by side; on GPUs that is rank 0's alone to have, who draws and scores."""
        if bias is not None or residual is not None:
            raise ShapeError("the output of a vocabulary's shards takes neither bias nor residual")
        if on_gpu(x):
            return gpu().logits_of_ranks(x, self)  # type: ignore[no-any-return]
        check_array("x", x, np.float32, (len(x) if x.ndim == 2 else 0, self.matrix.shape[1]))
        own = cpu.linear(x, host(self.matrix), None, None)
        parts = self.group.gather(own, [(len(x), last - first) for first, last in pairwise(self.bounds)])
        return np.concatenate(parts, axis=1)


def vocabulary_bounds(ids: int, ranks: int) -> tuple[int, ...]:
    """Blocks of 1,024 ids, dealt in order."""
    return tuple(cut(ids, BLOCK, ranks))


AnyMatrix = (
    Matrix | DeviceMatrix | DeviceExperts | LeafExperts | PackedMatrix | PackedLeaves | InputShard | VocabularyShard
)
"""A weight, as `linear` and `embedding` take it."""


def own_part(weight: AnyMatrix) -> Matrix:
    """What this rank has of a weight on the CPU."""
    return host(weight.matrix if isinstance(weight, InputShard) else weight)
