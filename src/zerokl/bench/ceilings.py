"""How fast this machine reads memory and multiplies: what measured speeds are held against."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from zerokl import _native

READ_BYTES = 512 << 20
"""Far more than any cache of a small machine keeps."""
ROUNDS = 1 << 22


@dataclass(frozen=True, slots=True)
class Ceilings:
    """With the threads and the instruction set that kernels use now."""

    read_gb_per_s: float
    """Reading each number of a large array once."""
    gflop_per_s: float
    """float32 multiply-adds on registers, two operations each."""

    def seconds(self, num_bytes: float, flops: float) -> float:
        """The least time for work that reads so many bytes and computes so much."""
        return max(num_bytes / self.read_gb_per_s, flops / self.gflop_per_s) / 1e9


def ceilings(repeats: int = 5) -> Ceilings:
    """The best of some repeats."""
    data = np.ones(READ_BYTES // 4, np.float32)
    reading = best(lambda: _native.read_once(data), repeats)
    multiplying = best(lambda: _native.multiply_add(ROUNDS), repeats)
    return Ceilings(data.nbytes / reading / 1e9, _native.multiply_add(1) * ROUNDS / multiplying / 1e9)


def best(call: Callable[[], object], repeats: int) -> float:
    """Seconds of the fastest of some calls."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)
