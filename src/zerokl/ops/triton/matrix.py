"""Weights on the device, as stored in bfloat16, row-major."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from zerokl.errors import UnsupportedDtype


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


def upload(array: NDArray[Any], device: str) -> Any:
    """The same numbers on the device."""
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)
