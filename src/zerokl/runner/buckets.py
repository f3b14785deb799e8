"""Token buckets: which sizes a step is padded to, and what a launch has room for at each. Integers only.

A step's kernels are launched for its bucket, never for its own size: then one captured graph serves every step of a
bucket, and a library is only ever called at sizes that were admitted. A row is a function of itself alone, so the
bucket moves no bit.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct

from zerokl.ops.work import SHORT_ROWS

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


class Kind(NamedTuple):
    """Layers whose keys lie alike and whose heads are grouped alike: they share page tables, slots and work."""

    window: int | None
    group: int
    """Query heads per key head."""


class Capacity(Struct, frozen=True):
    """What steps of one engine can ask for."""

    max_tokens: int
    """Of one step."""
    max_segments: int
    table_width: int
    """Pages of the longest sequence."""
    kinds: tuple[Kind, ...]
    chunk: int
    tile_rows: int
    interval: int = 0
    """Tokens between checkpoints of states; 0: the model has no states."""

    @property
    def windows(self) -> tuple[int, ...]:
        """In the order of `types.Segment.windows`."""
        return tuple(dict.fromkeys(kind.window for kind in self.kinds if kind.window is not None))

    @property
    def short_tokens(self) -> int:
        """Buckets up to this one have a way without long items: steps of nothing but single tokens fit."""
        return bucket_of(min(self.max_segments, self.max_tokens), TOKEN_BUCKETS)

    def layout(self, tokens: int, is_short: bool) -> Layout:
        """Room for steps of a bucket; with `is_short`, for those of single tokens without long items."""
        segments = min(tokens, self.max_segments)
        return Layout(
            tokens=tokens,
            segments=segments,
            table_width=self.table_width,
            items=tuple(self._items(kind, tokens, segments, is_short) for kind in self.kinds),
            is_short=is_short,
            checkpoints=tokens // self.interval + segments if self.interval else 0,
        )

    def _items(self, kind: Kind, tokens: int, segments: int, is_short: bool) -> Items:
        chunks = -(-self.table_width * PAGE_SIZE // self.chunk)
        if kind.window is not None:
            chunks = min(chunks, (kind.window + SHORT_ROWS - 2) // self.chunk + 2)
        long = 0 if is_short else tokens * kind.group // self.tile_rows + segments
        return Items(long, min(MAX_PARTS, segments * chunks))


class Items(NamedTuple):
    """How many items of attention's work there may be."""

    long: int
    short: int


class Layout(Struct, frozen=True):
    """Where the arrays of a bucket's steps lie in one buffer of int32. Each starts at a multiple of 4 (16 bytes)."""

    tokens: int
    segments: int
    table_width: int
    items: tuple[Items, ...]
    """Of each kind of layers."""
    is_short: bool
    checkpoints: int

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """In the order in which they lie; page tables last, a segment's beside each other: the used part is a prefix.

        What there is of each kind has the kind's number in its name, but for the first kind.
        """
        shapes: dict[str, tuple[int, ...]] = {"tokens": (self.tokens,), "positions": (self.tokens,)}
        for kind, items in enumerate(self.items):
            shapes |= {
                named("slots", kind): (self.tokens,),
                named("counts", kind): (8,),
                named("long", kind): (items.long, 8),
                named("short", kind): (items.short, 8),
            }
        if self.checkpoints:
            shapes |= {
                "segment_of_row": (self.tokens,),
                "row_starts": (self.segments + 1,),
                "source": (self.segments,),
                "live": (self.segments,),
                "write_starts": (self.segments + 1,),
                "writes": (self.checkpoints, 2),
            }
        return shapes | {"page_table": (self.segments, self.row_of_tables)}

    @property
    def row_of_tables(self) -> int:
        """Integers of one segment's page tables."""
        return max(1, len(self.items)) * self.table_width

    @property
    def offsets(self) -> dict[str, int]:
        places, offset = {}, 0
        for name, shape in self.shapes.items():
            places[name] = offset
            offset += aligned(shape[0] * (shape[1] if len(shape) > 1 else 1))
        return places

    @property
    def size(self) -> int:
        return self.offsets["page_table"] + aligned(self.segments * self.row_of_tables)

    def short_programs(self, kind: int = 0) -> int:
        """Of a launch over short items, per key head; they take turns if there are more items."""
        return min(self.items[kind].short, max(LEAST_PROGRAMS, self.segments))


def named(name: str, kind: int) -> str:
    """What the arrays of one kind are called in a layout."""
    return f"{name}.{kind}" if kind else name


def aligned(count: int) -> int:
    return -(-count // 4) * 4
