"""Weights on the device, as stored in bfloat16, row-major."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace
from numpy.typing import NDArray

from zerokl.errors import CheckpointError, UnsupportedDtype
from zerokl.ops.matrix import PackedLeaves, PackedMatrix
from zerokl.ops.triton.packed import SHRUNK, pack_fp8, pack_nvfp4


def pack(weight: NDArray[Any], dtype: str, device: str) -> Any:
    """A weight (float32, float16, or the bits of bfloat16 as uint16), rounded to bfloat16 once, to nearest even."""
    if dtype != "bfloat16":
        raise UnsupportedDtype(f"weights on the GPU are bfloat16, not {dtype}")
    host = torch.from_numpy(np.ascontiguousarray(weight))
    if weight.dtype == np.uint16:
        return host.view(torch.bfloat16).to(device)
    return host.to(device).to(torch.bfloat16)


def joined(parts: Sequence[Any]) -> Any:
    """Rows side by side."""
    return torch.cat(tuple(parts), 1)


def pack_quantised(kind: str, codes: Any, scales: Any, factors: Any, device: str, divides: bool) -> PackedMatrix:
    """See `ops.pack_on_device`."""
    stored, kept, by = (None if part is None else on_device(part, device) for part in (codes, scales, factors))
    rows, columns = codes.shape
    if kind != "nvfp4":
        return PackedMatrix(kind, (rows, columns), pack_fp8(stored), kept, by, divides)
    words, kept = pack_nvfp4(stored, kept)
    by = factors_of(by, 1 / SHRUNK if divides else SHRUNK)
    return PackedMatrix(kind, (rows, 2 * columns), words, kept, by, divides)


def packed_leaves(leaves: Sequence[PackedMatrix]) -> PackedLeaves:
    """See `ops.packed_leaves`."""
    if len({leaf.shape for leaf in leaves}) > 1:
        return PackedLeaves(tuple(leaves))
    words, scales = torch.stack([leaf.words for leaf in leaves]), None
    if leaves[0].scales is not None:
        scales = torch.stack([leaf.scales for leaf in leaves])
    own = [replace(leaf, words=words[i], scales=None if scales is None else scales[i]) for i, leaf in enumerate(leaves)]
    return PackedLeaves(tuple(own), words, scales)


def under_each_other(parts: Sequence[PackedMatrix]) -> PackedMatrix:
    """See `ops.under_each_other`."""
    first, rows = parts[0], sum(part.shape[0] for part in parts)
    words, scales, factors = (
        None if getattr(first, name) is None else torch.cat([getattr(part, name) for part in parts])
        for name in ("words", "scales", "factors")
    )
    return replace(first, shape=(rows, first.shape[1]), words=words, scales=scales, factors=factors)


def factors_of(stored: Any, power: float) -> Any:
    """For numbers that were divided by a power of two. Raises CheckpointError for factors that it makes inexact."""
    by = stored * power
    if not bool((by / power == stored).all()):
        raise CheckpointError("a factor of NVFP4 is too large or too small for the GPU's kernels")
    return by


def on_device(array: Any, device: str) -> Any:
    return array if isinstance(array, torch.Tensor) else upload(array, device)


def upload(array: NDArray[Any], device: str) -> Any:
    """The same numbers on the device."""
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)
