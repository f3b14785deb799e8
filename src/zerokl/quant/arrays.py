"""Quantised weights as arrays of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby, pairwise
from typing import Any, Protocol, runtime_checkable

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from zerokl import ops
from zerokl.errors import CheckpointError, UnsupportedModel
from zerokl.quant.floats import E2M1, E4M3

Bytes = NDArray[np.uint8]
F32 = NDArray[np.float32]

BLOCK_TYPES = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k")
"""Those of GGUF that the kernels read packed; the others are dequantised when they are loaded."""


@runtime_checkable
class Quantised(Protocol):
    """A weight [N, K], or [X, N, K] for experts, in its stored form."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    def __getitem__(self, rows: Any) -> Any:
        """Of [X, N, K] one expert, by number; of [N, K] the rows of a slice."""

    def __len__(self) -> int: ...
    def float32(self) -> F32: ...
    def pack(self, integer: bool) -> ops.Matrix: ...


@runtime_checkable
class Cuttable(Quantised, Protocol):
    """One of which ranks may have parts in its stored form."""

    def cut(self, axis: int, pieces: Pieces) -> Any:
        """Pieces of an axis, one after the other. Raises UnsupportedModel for a cut within a block."""


Pieces = Sequence[tuple[int, int]]
"""(start, stop) of each."""


class Blocks(Struct, frozen=True, eq=False):
    """GGUF blocks, row after row."""

    kind: str
    stored: Bytes
    """[N, bytes of a row]."""
    columns: int
    dequantise: Callable[[Bytes], F32]

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.stored), self.columns)

    def __len__(self) -> int:
        return len(self.stored)

    def __getitem__(self, rows: Any) -> Blocks:
        return replace(self, stored=self.stored[rows])

    def float32(self) -> F32:
        return self.dequantise(np.ascontiguousarray(self.stored)).reshape(self.shape)

    def pack(self, integer: bool) -> ops.Matrix:
        return ops.pack_blocks(self.stored, self.kind, self.columns, integer=integer)


class Nvfp4(Struct, frozen=True, eq=False):
    codes: Bytes
    """[.., N, K/2]: the even k in the low halves."""
    scales: Bytes
    """[.., N, K/16], codes of e4m3."""
    factor: F32
    """Of the whole weight: [] or, per expert, [X]. A divisor if `divides`."""
    divides: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.codes.shape[:-1], 2 * self.codes.shape[-1])

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: Any) -> Nvfp4:
        factor = self.factor[rows] if self.codes.ndim == 3 and self.factor.ndim else self.factor
        return replace(self, codes=self.codes[rows], scales=self.scales[rows], factor=factor)

    def float32(self) -> F32:
        factor = self.factor.reshape(self.factor.shape + (1,) * (self.scales.ndim - self.factor.ndim))
        scales = E4M3[self.scales] / factor if self.divides else E4M3[self.scales] * factor
        codes = np.stack([self.codes & 15, self.codes >> 4], axis=-1).reshape(self.shape)
        numbers: F32 = E2M1[codes] * np.repeat(scales, 16, axis=-1)
        return numbers

    def pack(self, integer: bool) -> ops.Matrix:
        return ops.pack_nvfp4(self.codes, self.scales, float(self.factor), divides=self.divides)

    def cut(self, axis: int, pieces: Pieces) -> Nvfp4:
        if axis == self.codes.ndim - 1:
            codes, scales = taken(self.codes, axis, pieces, 16, 2), taken(self.scales, axis, pieces, 16, 16)
        else:
            codes, scales = taken(self.codes, axis, pieces), taken(self.scales, axis, pieces)
        return replace(self, codes=codes, scales=scales)


class Fp8(Struct, frozen=True, eq=False):
    codes: Bytes
    scale: F32
    """[] or [N]."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.codes.shape

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: Any) -> Fp8:
        return replace(self, codes=self.codes[rows], scale=self.scale[rows] if self.scale.ndim else self.scale)

    def float32(self) -> F32:
        return E4M3[self.codes] * (self.scale[:, None] if self.scale.ndim else self.scale)

    def pack(self, integer: bool) -> ops.Matrix:
        return ops.pack_fp8(self.codes, self.scale if self.scale.ndim else float(self.scale))

    def cut(self, axis: int, pieces: Pieces) -> Fp8:
        by_row = axis == 0 and self.scale.ndim
        scale = taken(self.scale, axis, pieces) if by_row else self.scale
        return Fp8(taken(self.codes, axis, pieces), scale)


class Fp8Blocks(Struct, frozen=True, eq=False):
    codes: Bytes
    scales: F32
    """[ceil(N/128), ceil(K/128)]."""

    BLOCK = 128

    @property
    def shape(self) -> tuple[int, ...]:
        return self.codes.shape

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: Any) -> Fp8Blocks:
        start, stop, step = rows.indices(len(self))
        if step != 1 or start % self.BLOCK:
            raise CheckpointError("rows of FP8 blocks can only be cut between blocks")
        scales = self.scales[start // self.BLOCK : -(-stop // self.BLOCK)]
        return Fp8Blocks(self.codes[rows], scales)

    def float32(self) -> F32:
        rows, columns = self.codes.shape
        scales = np.repeat(np.repeat(self.scales, self.BLOCK, 0)[:rows], self.BLOCK, 1)[:, :columns]
        return E4M3[self.codes] * scales

    def pack(self, integer: bool) -> ops.Matrix:
        return ops.pack_fp8(self.codes, self.scales)

    def cut(self, axis: int, pieces: Pieces) -> Fp8Blocks:
        scales = taken(self.scales, axis, pieces, self.BLOCK, self.BLOCK)
        return Fp8Blocks(taken(self.codes, axis, pieces), scales)


def taken(array: Any, axis: int, pieces: Pieces, unit: int = 1, each: int = 1) -> Any:
    """Pieces of an axis whose numbers stand for `each` of a weight; cuts must be between units, but at its end."""
    if any(start % unit for start, _ in pieces) or any(stop % unit for _, stop in pieces[:-1]):
        raise UnsupportedModel(f"ranks or leaves would cut blocks of {unit} quantised numbers at {list(pieces)}")
    before = (slice(None),) * axis
    parts = [array[(*before, slice(start // each, -(-stop // each)))] for start, stop in pieces]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=axis)


def device_matrix_of(parts: Sequence[Any], device: str) -> ops.PackedMatrix:
    """The same on a GPU: parts of one format, each with its own factors.

    Raises UnsupportedModel for parts of several.
    """
    first = parts[0]
    if any(
        type(part) is not type(first) or getattr(part, "divides", 0) != getattr(first, "divides", 0) for part in parts
    ):
        names = ", ".join(sorted({type(part).__name__ for part in parts}))
        raise UnsupportedModel(f"parts of one matrix in several formats ({names}) aren't there on the GPU")
    codes = joined([part.codes for part in parts])
    if isinstance(first, Nvfp4):
        factors = np.concatenate([np.full(len(part), part.factor, np.float32) for part in parts])
        scales = joined([part.scales for part in parts])
        return ops.pack_on_device("nvfp4", codes, scales, factors, device, divides=first.divides)
    if isinstance(first, Fp8):
        factors = np.concatenate([np.broadcast_to(part.scale, (len(part),)) for part in parts])
        return ops.pack_on_device("fp8", codes, None, factors, device, divides=False)
    if any(len(part) % 16 for part in parts[:-1]):
        raise UnsupportedModel("parts of FP8 blocks whose rows aren't multiples of 16 aren't there on the GPU")
    scales = np.concatenate([np.repeat(part.scales, 8, 0)[: -(-len(part) // 16)] for part in parts])
    return ops.pack_on_device("fp8_block", codes, scales, None, device, divides=False)


EXPERTS_AT_ONCE = 16
"""Packing takes several times the memory of what it packs."""


def device_leaves_of(parts: Sequence[Any], ends: Sequence[int], device: str) -> ops.PackedLeaves:
    """The same of a weight whose sums are cut in leaves: each a packed matrix of its own columns."""
    bounds = pairwise((0, *ends))
    leaves = [device_matrix_of([part.cut(1, [piece]) for part in parts], device) for piece in bounds]
    return ops.packed_leaves(leaves)


def device_experts_of(experts: Sequence[Sequence[Any]], device: str) -> ops.DeviceExperts:
    """One matrix per expert, of parts one under the other, on a GPU. Raises UnsupportedModel as `device_matrix_of`."""
    rows = sum(len(part) for part in experts[0])
    if rows % 16:
        raise UnsupportedModel(f"packed experts of {rows} rows, no multiple of 16, aren't there on the GPU")
    groups = [experts[first : first + EXPERTS_AT_ONCE] for first in range(0, len(experts), EXPERTS_AT_ONCE)]
    packed = [device_matrix_of([part for parts in group for part in parts], device) for group in groups]
    return ops.DeviceExperts(packed[0] if len(packed) == 1 else ops.under_each_other(packed), len(experts))


def matrix_of(parts: Sequence[Quantised | NDArray[Any]], integer: bool) -> ops.Matrix:
    """The parts one under the other as one matrix; each keeps its format and its scale.

    Neighbours of one block type become one shard, so that products of few rows have fewer seams. `integer`: products
    with int8 activations where the format has them.
    """
    packed = [shard_of(list(group), integer) for _, group in groupby(parts, key=kind_of)]
    return packed[0] if len(packed) == 1 else ops.stack(packed)


def kind_of(part: Quantised | NDArray[Any]) -> object:
    """What neighbours must share to be one shard."""
    if isinstance(part, Blocks):
        return part.kind
    return part.dtype.name if isinstance(part, np.ndarray) else id(part)


def joined(parts: list[Any]) -> Any:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def shard_of(parts: list[Any], integer: bool) -> ops.Matrix:
    """Parts that share what `kind_of` says."""
    first = parts[0]
    if isinstance(first, Blocks):
        return ops.pack_blocks([part.stored for part in parts], first.kind, first.columns, integer=integer)
    packed: ops.Matrix = first.pack(integer) if isinstance(first, Quantised) else ops.pack_stored(parts)
    return packed


def numbers_of(matrix: ops.AnyMatrix) -> set[str]:
    """The types of the numbers that a matrix computes with, for the fingerprint."""
    integer = isinstance(matrix, ops.Matrix) and matrix.is_integer
    return {number_type(name, integer) for name in matrix.dtype.split("+")}


def number_type(kept: str, integer: bool) -> str:
    """Block types of GGUF stand for float32 numbers, which a matrix of float32 would hold as well; with int8
    activations they are another arithmetic.
    """
    if kept not in BLOCK_TYPES:
        return kept
    return f"{kept} by int8" if integer else "float32"
