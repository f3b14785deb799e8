"""Inputs on which a change of order, rounding or flushing shows."""

from __future__ import annotations

import numpy as np

from zerokl.ops.kv import F32


def wide(seed: int, *shape: int) -> F32:
    """Normal numbers times 2^-8 .. 2^8, so that sums round at every step."""
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) * 2.0 ** rng.integers(-8, 9, shape)).astype(np.float32)


def subnormal(seed: int, *shape: int) -> F32:
    """Products of two of these are subnormal: gone, if anyone flushes."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32) * np.float32(2.0**-72)


def cancelling(seed: int, rows: int, outputs: int, depth: int) -> tuple[F32, F32]:
    """(x, weight): the second half of the sum takes the first away again, so what is left is rounding."""
    x, weight = wide(seed, rows, depth // 2), wide(seed + 1, outputs, depth // 2)
    return np.concatenate([x, x], axis=1), np.concatenate([weight, -weight], axis=1)


def same(a: F32, b: F32) -> bool:
    """Equal bits; any NaN equals any other, because which one an operation makes is the machine's affair."""
    nan = np.isnan(a)
    return bool(np.array_equal(nan, np.isnan(b)) and a[~nan].tobytes() == b[~nan].tobytes())
