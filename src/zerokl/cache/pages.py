"""The cache facade: every page is leased, cached or free, and a `Lease` is the only way to hold one.

    free ──reserve──▶ leased (private to one lease) ──computed: full page──▶ leased (in the tree, shared)
      ▲                   │ release                                              │ last release
      ├───────────────────┘                                                      ▼
      └────────────────────────────── evict (oldest, leaf first) ─────────── cached

"Now" is a count of given-back leases, never a clock, so the same calls evict the same pages. Pages of sliding kinds and
state checkpoints hang on the same tree and are evicted on their own (`shelf.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from zerokl.cache.lease import Lease
from zerokl.cache.match import STOPS, Stop, deepest
from zerokl.cache.shelf import Shelf
from zerokl.cache.states import StateKind
from zerokl.cache.stats import CacheStats, StateStats, WindowStats
from zerokl.cache.tree import Node, PrefixTree
from zerokl.cache.windows import WindowKind
from zerokl.errors import ConfigError, EngineError
from zerokl.types import PageId, StatePool, WindowPool


class Cache:
    """Pages of the full kind, the prefix tree over those that are full, and what else hangs on it."""

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        enabled: bool = True,
        *,
        windows: Sequence[WindowPool] = (),
        states: StatePool | None = None,
    ) -> None:
        """`windows`, `states`: as in `types.Pools`. Raises ConfigError for a pool in which no request fits."""
        self.num_pages = num_pages
        self.page_size = page_size
        self.enabled = enabled
        self.window_kinds = [WindowKind(pool, index, page_size) for index, pool in enumerate(windows)]
        self.state_kind = StateKind(states, len(windows), page_size) if states else None
        self.shelves: list[Shelf] = [kind.shelf for kind in self.window_kinds]
        self.shelves += [self.state_kind.shelf] if self.state_kind else []
        self._check_pools()
        self._tree = PrefixTree(page_size, len(self.shelves))
        self._free = [PageId(page) for page in reversed(range(num_pages))]
        self._leases: dict[int, Lease] = {}
        self._now = 0
        self._leases_given = 0
        self._lookups = self._hits = self._lookup_tokens = self._hit_tokens = 0
        self._published = self._merged = self._evicted = self._flushes = 0
        self._stopped: dict[str, int] = dict.fromkeys(STOPS, 0)
        self._lost_tokens = 0

    def lease(self, tokens: Sequence[int], limit: int, salt: str = "", use_cache: bool = True) -> Lease:
        """A lease that starts with the longest cached prefix, in whole intervals, of `tokens[:limit]`.

        Without eviction in between, `cached_tokens` is exactly interval * floor(min(match, limit) / interval); the
        interval is that of the checkpoints, or the page. `use_cache=False`: neither reads the tree nor adds to it.
        """
        return self._give(*self._look_up(tokens, limit, salt, use_cache), limit)

    def lease_with_room(
        self, tokens: Sequence[int], limit: int, salt: str = "", use_cache: bool = True, *, num_tokens: int
    ) -> Lease | None:
        """`lease()` and `reserve_at_admission()` in one, or None and nothing has changed, not even a count."""
        root, path, pages, stop = self._look_up(tokens, limit, salt, use_cache)
        if not self._has_room(path[:pages], self.pages_for(num_tokens)):
            return None
        lease = self._give(root, path, pages, stop, limit)
        if not lease.reserve_at_admission(num_tokens):
            raise EngineError(f"the cache counted room for {num_tokens} tokens that isn't there: {self.stats}")
        return lease

    def flush(self) -> bool:
        """Forgets every cached prefix. False, and nothing has changed, while any lease is out."""
        if self._leases:
            return False
        while self._evict_one():
            pass
        self._flushes += 1
        return True

    @property
    def room(self) -> int:
        """Pages that a lease could take now: free ones, and cached ones by eviction."""
        return len(self._free) + self._tree.num_unlocked

    @property
    def rooms(self) -> tuple[int, ...]:
        """Room of every kind: an admission that was refused is refused as long as none of them grows."""
        live = (len(self.state_kind.free_live),) if self.state_kind else ()
        return (self.room, *(kind.shelf.room for kind in self.window_kinds), *live)

    def pages_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.page_size)

    def check(self) -> None:
        """Proves that pages add up and that the tree is whole; raises EngineError. Slow: for tests and debugging."""
        from zerokl.cache.check import check

        check(self, self._tree, self._free, list(self._leases.values()))

    @property
    def stats(self) -> CacheStats:
        free, cached = len(self._free), self._tree.num_unlocked
        return CacheStats(
            num_pages=self.num_pages,
            free=free,
            cached=cached,
            leased=self.num_pages - free - cached,
            leases=len(self._leases),
            lookups=self._lookups,
            hits=self._hits,
            lookup_tokens=self._lookup_tokens,
            hit_tokens=self._hit_tokens,
            published=self._published,
            merged=self._merged,
            evicted=self._evicted,
            flushes=self._flushes,
            stopped=dict(self._stopped),
            lost_tokens=self._lost_tokens,
            windows=tuple(window_stats(kind) for kind in self.window_kinds),
            states=state_stats(self.state_kind) if self.state_kind else None,
        )

    def _check_pools(self) -> None:
        for kind in self.window_kinds:
            needed = min(kind.needed_alone, self.num_pages)
            if kind.shelf.size < needed:
                raise ConfigError(
                    f"a window of {kind.window} tokens needs {needed} pages of {self.page_size}; "
                    f"the pool has {kind.shelf.size}"
                )
        if self.state_kind and not self.state_kind.num_live:
            raise ConfigError("there is no state slot for a running request")

    def _look_up(
        self, tokens: Sequence[int], limit: int, salt: str, use_cache: bool
    ) -> tuple[str | None, list[Node], int, Stop]:
        """(salt, or None to keep out; the cached path; the pages of it that every kind supports; why not more)."""
        if not (use_cache and self.enabled):
            return None, [], 0, "limit"
        path = self._tree.match(salt, tokens, min(limit, len(tokens)))
        return salt, path, *deepest(path, limit, self.page_size, self.window_kinds, self.state_kind)

    def _has_room(self, matched: list[Node], pages: int) -> bool:
        """Whether a lease that starts with these nodes can be admitted with `pages` pages."""
        if pages - len(matched) > self.room - sum(not node.leases for node in matched):
            return False
        if self.state_kind and not self.state_kind.free_live:
            return False
        return all(
            kind.pages_at_admission(len(matched), pages) - len(matched) <= kind.shelf.room - kind.num_unlocked(matched)
            for kind in self.window_kinds
        )

    def _give(self, salt: str | None, path: list[Node], pages: int, stop: Stop, limit: int) -> Lease:
        self._leases_given += 1
        root = None if salt is None else self._tree.root(salt)
        if root:
            self._lookups += 1
            self._hits += bool(pages)
            self._lookup_tokens += max(limit, 0)
            self._hit_tokens += pages * self.page_size
            self._stopped[stop] += 1
            if stop in ("sliding", "state"):
                self._lost_tokens += (len(path) - pages) * self.page_size
        lease = Lease(self, self._leases_given, root, path[:pages], stop)
        self._leases[lease.serial] = lease
        return lease

    def _take_pages(self, count: int) -> list[PageId] | None:
        """`count` free pages, evicting as needed; None, and nothing has changed, if there aren't so many."""
        if count > self.room:
            return None
        while len(self._free) < count and self._evict_one():
            self._evicted += 1
        return [self._free.pop() for _ in range(count)]

    def _evict_one(self) -> bool:
        node = self._tree.evict()
        if node is None:
            return False
        self._free.append(node.page)
        for shelf in self.shelves:
            shelf.detach(node)
        return True


def window_stats(kind: WindowKind) -> WindowStats:
    shelf = kind.shelf
    leased = shelf.size - shelf.room
    return WindowStats(shelf.size, shelf.num_free, shelf.num_cached, leased, shelf.evicted, kind.window)


def state_stats(kind: StateKind) -> StateStats:
    shelf = kind.shelf
    leased, live_leased = shelf.size - shelf.room, kind.num_live - len(kind.free_live)
    return StateStats(
        size=shelf.size,
        free=shelf.num_free,
        cached=shelf.num_cached,
        leased=leased,
        evicted=shelf.evicted,
        interval=kind.interval,
        live=kind.num_live,
        live_leased=live_leased,
        skipped=kind.skipped,
    )
