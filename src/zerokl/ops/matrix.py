"""Weights: packed once at load, read as they are by `linear` and `embedding`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from zerokl import _native
from zerokl.errors import ShapeError, UnsupportedDtype
from zerokl.ops.device import gpu

Matrix = _native.Matrix
Bytes = NDArray[np.uint8]


class DeviceMatrix(Struct, frozen=True, eq=False):
    """A weight [N, K] on the GPU: what the packed native matrix is to the CPU."""

    values: Any
    """A torch tensor, [N, K] bfloat16, contiguous."""
    ends: tuple[int, ...] = ()
    """Where leaves of K end, if ranks could share the sum."""

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.values.shape
        return rows, columns

    @property
    def form(self) -> str:
        return ""

    @property
    def dtype(self) -> str:
        return "bfloat16"

    @property
    def nbytes(self) -> int:
        return int(self.values.nbytes)


class DeviceExperts(Struct, frozen=True, eq=False):
    """One matrix [N, K] for each of X experts on the GPU, side by side: a kernel finds any of them by its number."""

    values: Any
    """A torch tensor, [X, N, K] bfloat16, contiguous; or a PackedMatrix [X * N, K]."""
    count: int = 0
    """Of experts in a PackedMatrix."""

    def __len__(self) -> int:
        return self.count or len(self.values)

    @property
    def shape(self) -> tuple[int, int]:
        """Of one."""
        *_, rows, columns = self.values.shape
        return (rows // self.count if self.count else rows), columns

    @property
    def dtype(self) -> str:
        return str(self.values.dtype) if self.count else "bfloat16"

    @property
    def nbytes(self) -> int:
        return int(self.values.nbytes)


class PackedMatrix(Struct, frozen=True, eq=False):
    """A quantised weight [N, K] on the GPU, in about the bytes of the file: `triton/packed.py` says how it lies."""

    kind: str
    """nvfp4, fp8 or fp8_block."""
    shape: tuple[int, int]
    words: Any
    scales: Any
    """nvfp4: of 16 k each; fp8_block: [N/16, K/128] f32; fp8: none."""
    factors: Any
    """[N] f32 for finished sums; fp8_block: none."""
    divides: bool = False

    @property
    def scaled(self) -> int:
        """What factors do: 1 times, 2 through, 3 they are scales of blocks."""
        return 3 if self.kind == "fp8_block" else 2 if self.divides else 1

    @property
    def factors_of_chain(self) -> Any:
        return self.scales if self.kind == "fp8_block" else self.factors

    @property
    def ends(self) -> tuple[int, ...]:
        """Of leaves: there are none."""
        return ()

    @property
    def form(self) -> str:
        """What ways to compute with it are chosen by."""
        return self.kind + ("/" if self.divides else "")

    @property
    def dtype(self) -> str:
        return self.kind

    @property
    def nbytes(self) -> int:
        return sum(int(part.nbytes) for part in (self.words, self.scales, self.factors) if part is not None)


class PackedLeaves(Struct, frozen=True, eq=False):
    """A quantised weight [N, K] whose sums are cut in leaves: a packed matrix of each leaf's columns.

    A leaf is a chain that is finished as the format says, with its factor; then comes the tree.
    """

    leaves: tuple[PackedMatrix, ...]
    words: Any = None
    """Those of all leaves, one leaf behind the other, if they are of one size."""
    scales: Any = None
    """The same, where there are any."""

    @property
    def shape(self) -> tuple[int, int]:
        return self.leaves[0].shape[0], self.ends[-1]

    @property
    def form(self) -> str:
        return self.leaves[0].form

    @property
    def ends(self) -> tuple[int, ...]:
        return tuple(accumulate(leaf.shape[1] for leaf in self.leaves))

    @property
    def dtype(self) -> str:
        return self.leaves[0].kind

    @property
    def nbytes(self) -> int:
        return sum(leaf.nbytes for leaf in self.leaves)


class LeafExperts(Struct, frozen=True, eq=False):
    """Experts on the GPU whose width is cut in leaves, in both matrices: for each leaf those of its part."""

    leaves: tuple[DeviceExperts, ...]

    def __len__(self) -> int:
        return len(self.leaves[0])

    @property
    def shape(self) -> tuple[int, int]:
        """Of one expert's second matrix."""
        return self.leaves[0].shape[0], sum(leaf.shape[1] for leaf in self.leaves)

    @property
    def dtype(self) -> str:
        return self.leaves[0].dtype

    @property
    def nbytes(self) -> int:
        return sum(leaf.nbytes for leaf in self.leaves)


STORED = {"float32": "float32", "float16": "float16", "uint16": "bfloat16"}
"""What the numbers of an array of this dtype are; numpy has no bfloat16, so its bits come as uint16."""


def pack(
    weight: NDArray[Any] | Sequence[NDArray[Any]], dtype: str, device: str = "cpu", leaves: Sequence[int] = ()
) -> Matrix | DeviceMatrix:
    """A weight in the layout that the kernels stream, in the memory format `dtype`.

    Shapes      weight [N, K], f32, f16 or the bits of bf16 as uint16 -> panels of 16 outputs, [N/16][K][16];
                several of one type, [N1, K], [N2, K], ..: one under the other, never copied side by side on the CPU
    Leaves      where the leaves of K end, which `linear` sums apart; none given: one, the whole of K
    Rounding    none if `dtype` holds what is stored; else once, to nearest even (too large becomes inf)
    Raises      ShapeError, UnsupportedDtype
    """
    parts = [weight] if isinstance(weight, np.ndarray) else list(weight)
    shapes = [list(part.shape) for part in parts]
    if any(len(shape) != 2 for shape in shapes) or len({shape[1] for shape in shapes}) != 1:
        raise ShapeError(f"a weight is [N, K], not {' under '.join(map(str, shapes))}")
    stored, columns = stored_type(parts), shapes[0][1]
    if dtype not in STORED.values():
        raise UnsupportedDtype(f"a weight is kept as one of {', '.join(STORED.values())}, not {dtype}")
    ends = [*leaves] or [columns]
    if ends[-1] != columns or any(end <= start for start, end in pairwise(ends)):
        raise ShapeError(f"leaves that end at {ends} don't cut {columns} columns")
    if device != "cpu":
        if len(ends) > gpu().MAX_LEAVES:
            raise UnsupportedDtype(f"a GPU sums {gpu().MAX_LEAVES} leaves at most, not {len(ends)}")
        whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return DeviceMatrix(gpu().pack(whole, dtype, device), tuple(leaves))
    bits = [part.view(np.uint16) if stored == "float16" else part for part in parts]
    return _native.pack([np.ascontiguousarray(part) for part in bits], stored, dtype, ends)


def stored_type(parts: Sequence[NDArray[Any]]) -> str:
    """What the numbers of all parts are. Raises UnsupportedDtype for other numbers, and for several types."""
    names = {part.dtype.name for part in parts}
    if len(names) != 1 or not names <= STORED.keys():
        raise UnsupportedDtype(f"a weight is one of {', '.join(STORED)} (bf16 bits), not {' and '.join(sorted(names))}")
    return STORED[names.pop()]


def pack_experts(weights: NDArray[Any], device: str) -> DeviceExperts:
    """[X, N, K] as `pack` keeps one of them, on the GPU. Raises UnsupportedDtype for numbers it doesn't know."""
    if weights.dtype.name not in STORED:
        raise UnsupportedDtype(f"a weight is one of {', '.join(STORED)} (bf16 bits), not {weights.dtype.name}")
    return DeviceExperts(gpu().pack(weights, "bfloat16", device))


def pack_stored(parts: Sequence[NDArray[Any]]) -> Matrix:
    """A weight in the memory format that its parts are stored in."""
    return host(pack(parts, stored_type(parts)))


def pack_blocks(blocks: Bytes | Sequence[Bytes], kind: str, columns: int, *, integer: bool) -> Matrix:
    """GGUF blocks [N, bytes of a row] as panels of 16 outputs, in about the bytes of the file; several as in `pack`.

    `linear` computes with the numbers that the blocks stand for, to the bit as with a float32 matrix of them; or, if
    `integer`, with x rounded to int8 per row and 32 k:

        d = max |x| / 127, q = round(x * (127 / max |x|))      per row and 32 k; ties to even
        acc = fma(scale * d, sum of code * q, acc)             per group in order, from +0; the sum is an exact integer
        acc = fma(offset, d * sum of q, acc)                   then, where the type has offsets
    """
    parts = [blocks] if isinstance(blocks, np.ndarray) else blocks
    return _native.pack_blocks([np.ascontiguousarray(part) for part in parts], kind, columns, integer)


def pack_nvfp4(codes: Bytes, scales: Bytes, factor: float, *, divides: bool = False) -> Matrix:
    """NVFP4: codes [N, K/2] of e2m1, the even k in the low halves; scales [N, K/16] of e4m3.

    A number is code times scale, exactly; a finished chain is multiplied once with `factor`, or divided by it.
    """
    rows, half = codes.shape
    if half % 8 or scales.shape != (rows, half // 8):
        raise ShapeError(f"codes {list(codes.shape)} and scales {list(scales.shape)} are no whole blocks of 16")
    return _native.pack_nvfp4(np.ascontiguousarray(codes), np.ascontiguousarray(scales), factor, divides)


def pack_fp8(codes: Bytes, scale: float | NDArray[np.float32]) -> Matrix:
    """FP8: codes [N, K] of e4m3 under one scale, one per output [N], or one per 128 by 128 [N/128, K/128], rounded up.

    A finished chain is multiplied once with its scale. Under scales of blocks: a chain per 128 k from +0, joined by
    acc = fma(scale, chain, acc).
    """
    codes = np.ascontiguousarray(codes)
    if isinstance(scale, float):
        return _native.pack_fp8(codes, scale)
    rows, columns = codes.shape
    scale = np.ascontiguousarray(scale)
    if scale.shape == (rows,):
        return _native.pack_fp8(codes, scale)
    if scale.shape != (-(-rows // 128), -(-columns // 128)):
        raise ShapeError(f"scales {list(scale.shape)} don't fit codes {list(codes.shape)}")
    return _native.pack_fp8_blocks(codes, scale)


def stack(parts: Sequence[Matrix]) -> Matrix:
    """One under the other, each with its own format and scale; nothing is copied."""
    if len({part.shape[1] for part in parts}) > 1:
        raise ShapeError(f"parts of shapes {', '.join(str(list(part.shape)) for part in parts)}")
    return _native.stack(list(parts))


def pack_on_device(
    kind: str,
    codes: Bytes,
    scales: NDArray[Any] | None,
    factors: NDArray[np.float32] | None,
    device: str,
    *,
    divides: bool,
) -> PackedMatrix:
    """A quantised weight for the GPU: nvfp4 (codes [N, K/2], scales [N, K/16], factors [N]), fp8 (codes [N, K],
    factors [N]) or fp8_block (codes, scales [N/16, K/128], those of the block that each panel of 16 outputs is in).

    `linear` gives: a chain of the bfloat16 numbers that codes and scales stand for, in float32; then the factor.
    """
    return gpu().pack_quantised(kind, codes, scales, factors, device, divides)  # type: ignore[no-any-return]


def packed_leaves(leaves: Sequence[PackedMatrix]) -> PackedLeaves:
    """Packed matrices of neighbouring columns, of one kind and with the same factors, as the leaves of one weight."""
    return gpu().packed_leaves(leaves)  # type: ignore[no-any-return]


def under_each_other(parts: Sequence[PackedMatrix]) -> PackedMatrix:
    """One packed matrix of several of one kind, on their device; all but the last have whole panels of 16 outputs."""
    return gpu().under_each_other(parts)  # type: ignore[no-any-return]


def upload(array: NDArray[Any], device: str = "cpu") -> Any:
    """The same numbers where the device's operations take them: vectors stay float32 everywhere."""
    return array if device == "cpu" else gpu().upload(array, device)


def host(weight: object) -> Matrix:
    """The packed matrix, for an operation whose arrays are on the CPU."""
    if not isinstance(weight, Matrix):
        raise UnsupportedDtype(f"an array on the CPU meets a {type(weight).__name__}")
    return weight
