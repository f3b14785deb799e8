"""Token buckets: which sizes a step is padded to, and what a launch has room for at each. Integers only.

A step's kernels are launched for its bucket, never for its own size: then one captured graph serves every step of a
bucket, and a library is only ever called at sizes that were admitted. A row is a function of itself alone, so the
bucket moves no bit.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

PAGE_SIZE = 64
"""Of the GPU's pools: a page is a block of keys."""

TOKEN_BUCKETS = (
    *(1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 896, 1024),
    *(1280, 1536, 1792, 2048, 2560, 3072, 3584, 4096, 5120, 6144, 7168, 8192),
)
ROW_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Of rows of logits; more rows are made slice by slice."""
MAX_TOKENS = TOKEN_BUCKETS[-1]
MAX_ROWS = ROW_BUCKETS[-1]
MAX_PARTS = 4096
"""Short items whose unmerged results fit the scratch memory; what is beyond goes as long items."""
LEAST_PROGRAMS = 128
"""Of a launch over short items, per key head: few requests with long contexts still fill the device."""


def bucket_of(count: int, buckets: Sequence[int]) -> int:
    """The smallest bucket that holds `count`; IndexError beyond the last."""
    return buckets[bisect.bisect_left(buckets, count)]


def buckets_up_to(most: int, buckets: Sequence[int]) -> tuple[int, ...]:
    """The buckets that steps of up to `most` can need."""
    return tuple(buckets[: bisect.bisect_left(buckets, most) + 1])


@dataclass(frozen=True, slots=True)
class Capacity:
    """What steps of one engine can ask for."""

    max_tokens: int
    """Of one step."""
    max_segments: int
    table_width: int
    """Pages of the longest sequence."""
    group: int
    """Query heads per key head."""
    chunk: int
    tile_rows: int

    @property
    def short_tokens(self) -> int:
        """Buckets up to this one have a way without long items: steps of nothing but single tokens fit."""
        return bucket_of(min(self.max_segments, self.max_tokens), TOKEN_BUCKETS)

    def layout(self, tokens: int, is_short: bool) -> Layout:
        """Room for steps of a bucket; with `is_short`, for those without long items."""
        segments = min(tokens, self.max_segments)
        chunks = -(-self.table_width * PAGE_SIZE // self.chunk)
        return Layout(
            tokens=tokens,
            segments=segments,
            table_width=self.table_width,
            long_items=0 if is_short else tokens * self.group // self.tile_rows + segments,
            short_items=min(MAX_PARTS, segments * chunks),
        )


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the arrays of a bucket's steps lie in one buffer of int32. Each starts at a multiple of 4 (16 bytes)."""

    tokens: int
    segments: int
    table_width: int
    long_items: int
    short_items: int

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """In the order in which they lie; the page table last, because its used part is then a prefix."""
        return {
            "tokens": (self.tokens,),
            "positions": (self.tokens,),
            "slots": (self.tokens,),
            "counts": (8,),
            "long": (self.long_items, 8),
            "short": (self.short_items, 8),
            "page_table": (self.segments, self.table_width),
        }

    @property
    def offsets(self) -> dict[str, int]:
        places, offset = {}, 0
        for name, shape in self.shapes.items():
            places[name] = offset
            offset += aligned(shape[0] * (shape[1] if len(shape) > 1 else 1))
        return places

    @property
    def size(self) -> int:
        return self.offsets["page_table"] + aligned(self.segments * self.table_width)

    @property
    def short_programs(self) -> int:
        """Of a launch over short items, per key head; they take turns if there are more items."""
        return min(self.short_items, max(LEAST_PROGRAMS, self.segments))


def aligned(count: int) -> int:
    return -(-count // 4) * 4
