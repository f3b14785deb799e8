"""Cutting rows: which columns go where. Nothing is rounded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from zerokl.ops.device import gpu, on_gpu


def columns(x: Any, *ends: int) -> list[Any]:
    """[T, N] -> the columns before the first end, those up to the next, ..., and the rest.

    On the CPU contiguous copies, as operations want them there; on the GPU views, whose rows keep their distance (of a
    copy, if neighbours in a row lie apart).
    """
    if on_gpu(x) and x.stride(1) != 1:
        x = x.contiguous()
    parts = [x[:, start:end] for start, end in pairwise([0, *ends, x.shape[1]])]
    return parts if on_gpu(x) else [np.ascontiguousarray(part) for part in parts]


def leading(x: Any, count: int) -> Any:
    """The first columns, [T, count], as rows of their own everywhere."""
    part = x[:, :count]
    return part.contiguous() if on_gpu(x) else np.ascontiguousarray(part)


def joined(*parts: Any) -> Any:
    """[T, a], [T, b], ... -> [T, a + b + ...]."""
    return gpu().joined(parts) if on_gpu(parts[0]) else np.concatenate(parts, axis=1)


def take_columns(x: Any, numbers: Sequence[int] | np.ndarray) -> Any:
    """[T, N] -> [T, n]: the columns of these numbers."""
    if on_gpu(x):
        return x[:, uploaded(tuple(int(number) for number in numbers), str(x.device))]
    return np.take(x, numbers, axis=1)


@lru_cache(256)
def uploaded(numbers: tuple[int, ...], device: str) -> Any:
    """Made once, before any graph is captured."""
    return gpu().upload(np.array(numbers, np.int64), device)


def at_positions(positions: Any, make: Callable[..., np.ndarray], given: tuple[Any, ...]) -> Any:
    """[T] f32 on the GPU: the entry of each row's position in the table `make(*given)`, which is uploaded once."""
    return position_table(make, given, str(positions.device))[positions.clamp(min=0).long()]


@lru_cache(8)
def position_table(make: Callable[..., np.ndarray], given: tuple[Any, ...], device: str) -> Any:
    return gpu().upload(make(*given), device)


def filled_like(x: Any, size: int, value: float) -> Any:
    """[size] f32, where x is: made once."""
    return filled(size, value, str(x.device)) if on_gpu(x) else np.full(size, value, np.float32)


@lru_cache(64)
def filled(size: int, value: float, device: str) -> Any:
    return gpu().upload(np.full(size, value, np.float32), device)
