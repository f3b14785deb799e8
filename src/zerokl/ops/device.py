"""Which backend an array belongs to: numpy to the CPU kernels, torch to `ops/triton`, imported when first met."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np


def on_gpu(array: Any) -> bool:
    """Whether an operation on this array is Triton's."""
    return not isinstance(array, np.ndarray)


def gpu() -> ModuleType:
    """The GPU bodies. Their checks are shapes that a kernel can't do; their contracts stand in `ops/triton/`."""
    from zerokl.ops import triton

    return triton
