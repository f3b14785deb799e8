"""Sequences in a page pool whose every other slot holds NaN, and steps over any parts of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zerokl.ops.attention import attention
from zerokl.ops.kv import F32, LayerKV, Ragged, store_kv

Part = tuple[int, int, int]
"""(sequence, first position, end)"""


@dataclass
class Paged:
    """`queries[s] [T, H, D]`, `keys[s]` and `values[s] [T, K, D]` of whole sequences, and an empty pool for them."""

    queries: list[F32]
    keys: list[F32]
    values: list[F32]
    page_size: int
    page_table: NDArray[np.int32]
    k: F32
    v: F32

    def kv(self, parts: Sequence[Part]) -> LayerKV:
        """A step of these parts, one segment each."""
        positions = np.concatenate([np.arange(start, end) for _, start, end in parts]).astype(np.int32)
        tables = [self.page_table[s][np.arange(start, end) // self.page_size] for s, start, end in parts]
        slots = np.concatenate(tables) * self.page_size + positions % self.page_size
        row_starts = np.cumsum([0, *(end - start for _, start, end in parts)]).astype(np.int32)
        pages = self.page_table[[s for s, _, _ in parts]]
        return LayerKV(self.k, self.v, Ragged(positions, slots.astype(np.int32), row_starts, pages, self.page_size))

    def rows(self, arrays: list[F32], parts: Sequence[Part]) -> F32:
        return np.concatenate([arrays[s][start:end] for s, start, end in parts])

    def step(self, parts: Sequence[Part], **rule: object) -> list[F32]:
        """Store the parts' keys, then attend: one result per part."""
        kv = self.kv(parts)
        store_kv(kv, self.rows(self.keys, parts), self.rows(self.values, parts))
        y = attention(self.rows(self.queries, parts), kv, 0.25, **rule)  # type: ignore[arg-type]
        return np.split(y, np.cumsum([end - start for _, start, end in parts])[:-1])


def paged(
    lengths: Sequence[int],
    *,
    heads: int = 6,
    kv_heads: int = 2,
    size: int = 16,
    page_size: int = 16,
    seed: int = 0,
    page_seed: int = 0,
    spread: float = 2.0,
) -> Paged:
    """Numbers from `seed`, page numbers from `page_seed`. Queries of this spread make peaked scores."""
    rng = np.random.default_rng(seed)

    def normal(length: int, heads: int, spread: float) -> F32:
        return (rng.standard_normal((length, heads, size)) * spread).astype(np.float32)

    queries = [normal(length, heads, spread) for length in lengths]
    keys = [normal(length, kv_heads, 1) for length in lengths]
    values = [normal(length, kv_heads, 1) for length in lengths]
    counts = [-(-length // page_size) for length in lengths]
    numbers = np.random.default_rng(page_seed).permutation(sum(counts) + 3).astype(np.int32)
    table = np.full((len(lengths), max(counts)), -1, np.int32)
    for row, count in zip(table, counts, strict=True):
        row[:count], numbers = numbers[:count], numbers[count:]
    pages = sum(counts) + 3
    k = np.full((pages, kv_heads, size, page_size), np.nan, np.float32)
    v = np.full((pages, kv_heads, page_size, size), np.nan, np.float32)
    return Paged(queries, keys, values, page_size, table, k, v)


def bits(array: F32) -> bytes:
    return array.tobytes()
