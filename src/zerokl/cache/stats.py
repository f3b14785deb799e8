"""What a cache holds now, and what has happened since its start (those counts only grow)."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct


class ShelfStats(Struct, frozen=True):
    """Pages of one sliding kind, or checkpoints."""

    size: int
    free: int
    cached: int
    """On nodes, and nobody needs them now."""
    leased: int
    evicted: int
    """Places taken from a node that stayed; those that left with their node aren't counted."""


class WindowStats(ShelfStats, frozen=True):
    window: int


class StateStats(ShelfStats, frozen=True):
    """Of the checkpoints; `leased` ones are pinned or about to be written."""

    interval: int
    live: int
    """Slots of running requests, all of them."""
    live_leased: int
    skipped: int
    """Checkpoints that weren't written because there was no slot."""


class HostStats(Struct, frozen=True):
    """One kind in the host tier."""

    kind: str
    size: int
    free: int
    spare: int
    """Copies of what the device has as well."""
    stored: int
    """Copied to the host since the start."""
    loaded: int
    dropped: int
    """Copies that were the last, and made way for others."""


class CacheStats(Struct, frozen=True):
    """Pages of the full kind, lookups, and the other kinds."""

    num_pages: int
    free: int
    cached: int
    leased: int
    leases: int
    """Leases out now."""
    lookups: int
    """Leases given that were allowed to match."""
    hits: int
    """Lookups that matched at least one page."""
    lookup_tokens: int
    """Tokens that lookups were allowed to match."""
    hit_tokens: int
    published: int
    """Pages that joined the prefix tree."""
    merged: int
    """Pages given back because another request had published the same prefix first."""
    evicted: int
    flushes: int
    stopped: Mapping[str, int]
    """Lookups by what kept the match from being one interval deeper: see `match.Stop`."""
    lost_tokens: int
    """Tokens whose keys were cached for full layers, but that ran again for want of a window or a state."""
    windows: tuple[WindowStats, ...]
    states: StateStats | None
    host: tuple[HostStats, ...]
    """The full kind, the sliding ones, the states; empty without a host tier."""
