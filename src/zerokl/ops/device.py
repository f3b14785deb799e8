"""Which backend an array belongs to: numpy to the CPU kernels, torch to `ops/triton`, imported when first met."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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


_recorders: list[Any] = []


def gpu() -> Any:
    """The GPU bodies. Their checks are shapes that a kernel can't do; their contracts stand in `ops/triton/`.

    While a model is recorded (`ops/tape.py`), the recorder.
    """
    if _recorders:
        return _recorders[-1]
    from zerokl.ops import triton

    return triton


@contextmanager
def recorded_by(recorder: Any) -> Iterator[None]:
    """Operations on arrays that aren't numpy's go to the recorder."""
    _recorders.append(recorder)
    try:
        yield
    finally:
        _recorders.pop()
