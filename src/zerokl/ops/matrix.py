"""Weights: packed once at load, read as they are by `linear` and `embedding`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zerokl import _native
from zerokl.errors import ShapeError, UnsupportedDtype
from zerokl.ops.device import gpu

Matrix = _native.Matrix


@dataclass(frozen=True, slots=True, eq=False)
class DeviceMatrix:
    """A weight [N, K] on the GPU: what the packed native matrix is to the CPU."""

    values: Any
    """A torch tensor, [N, K] bfloat16, contiguous."""

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.values.shape
        return rows, columns

    @property
    def dtype(self) -> str:
        return "bfloat16"

    @property
    def nbytes(self) -> int:
        return int(self.values.nbytes)


STORED = {"float32": "float32", "float16": "float16", "uint16": "bfloat16"}
"""What the numbers of an array of this dtype are; numpy has no bfloat16, so its bits come as uint16."""


def pack(weight: NDArray[Any], dtype: str, device: str = "cpu", leaves: Sequence[int] = ()) -> Matrix | DeviceMatrix:
    """A weight in the layout that the kernels stream, in the memory format `dtype`.

    Shapes      weight [N, K], f32, f16 or the bits of bf16 as uint16 -> panels of 16 outputs, [N/16][K][16]
    Leaves      where the leaves of K end, which `linear` sums apart; none given: one, the whole of K
    Rounding    none if `dtype` holds what is stored; else once, to nearest even (too large becomes inf)
    Raises      ShapeError, UnsupportedDtype
    """
    if weight.ndim != 2:
        raise ShapeError(f"a weight is [N, K], not {list(weight.shape)}")
    stored = STORED.get(weight.dtype.name)
    if stored is None:
        raise UnsupportedDtype(f"a weight is one of {', '.join(STORED)} (bf16 bits), not {weight.dtype.name}")
    if dtype not in STORED.values():
        raise UnsupportedDtype(f"a weight is kept as one of {', '.join(STORED.values())}, not {dtype}")
    ends = [*leaves] or [weight.shape[1]]
    if ends[-1] != weight.shape[1] or any(end <= start for start, end in pairwise(ends)):
        raise ShapeError(f"leaves that end at {ends} don't cut {weight.shape[1]} columns")
    if device != "cpu":
        if len(ends) > 1:
            raise UnsupportedDtype("sums in leaves are not there on the GPU yet")
        return DeviceMatrix(gpu().pack(weight, dtype, device))
    bits = weight.view(np.uint16) if stored == "float16" else weight
    return _native.pack(np.ascontiguousarray(bits), stored, dtype, ends)


def upload(array: NDArray[Any], device: str = "cpu") -> Any:
    """The same numbers where the device's operations take them: vectors stay float32 everywhere."""
    return array if device == "cpu" else gpu().upload(array, device)


def host(weight: object) -> Matrix:
    """The packed matrix, for an operation whose arrays are on the CPU."""
    if not isinstance(weight, Matrix):
        raise UnsupportedDtype(f"an array on the CPU meets a {type(weight).__name__}")
    return weight
