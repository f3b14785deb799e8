"""Which backend an array belongs to: numpy to the CPU kernels, torch to `ops/triton`, imported when first met."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from zerokl.errors import UnsupportedModel


def on_gpu(array: Any) -> bool:
    """Whether an operation on this array is Triton's."""
    return not isinstance(array, np.ndarray)


def only_on_cpu(array: Any, operation: str) -> None:
    """Raise UnsupportedModel for a tensor given to an operation that has no GPU body yet."""
    if on_gpu(array):
        raise UnsupportedModel(f"{operation} isn't there on the GPU yet; run this model with --device cpu")


def gpu() -> ModuleType:
    """The GPU bodies. Their checks are shapes that a kernel can't do; their contracts stand in `ops/triton/`."""
    from zerokl.ops import triton

    return triton
