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

from zerokl.cache.host import HostShelf
from zerokl.cache.lease import Lease
from zerokl.cache.match import STOPS, Stop, deepest
from zerokl.cache.shelf import Shelf
from zerokl.cache.states import StateKind
from zerokl.cache.stats import CacheStats, HostStats, StateStats, WindowStats
from zerokl.cache.tree import NO_PAGE, Node, PrefixTree
from zerokl.cache.windows import WindowKind
from zerokl.errors import ConfigError, EngineError
from zerokl.types import Copy, PageId, Pools, StatePool, WindowPool


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
        host: Pools | None = None,
    ) -> None:
        """`windows`, `states`, `host`: as in `types.Pools`. Raises ConfigError for a pool in which no request fits."""
        self.num_pages = num_pages
        self.page_size = page_size
        self.enabled = enabled
        self.window_kinds = [WindowKind(pool, index, page_size) for index, pool in enumerate(windows)]
        self.state_kind = StateKind(states, len(windows), page_size) if states else None
        self.shelves: list[Shelf] = [kind.shelf for kind in self.window_kinds]
        self.shelves += [self.state_kind.shelf] if self.state_kind else []
        self._check_pools()
        self._copies: list[Copy] = []
        self.host = self._host_shelves(host) if host else []
        self._tree = PrefixTree(page_size, len(self.shelves), self.host[0] if self.host else None)
        self._tree.on_remove = self._detach
        if self.host:
            self.host[0].on_drop = self._tree.remove
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
        A prefix that the host has must fit the device: raises EngineError (`lease_with_room` would say None).
        """
        root, path, pages, stop = self._look_up(tokens, limit, salt, use_cache)
        if not self._has_room(path[:pages], pages):
            raise EngineError(f"no room for a lease of {pages} cached pages: {self.stats}")
        return self._give(root, path, pages, stop, limit)

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
        self._forget_what_only_the_host_has()
        host, self._tree.host = self._tree.host, None
        while self._evict_one():
            pass
        self._tree.host = host
        self._copies.clear()
        self._flushes += 1
        return True

    def flush_device(self) -> None:
        """Evicts all that nobody needs now from the device, for tests of the host tier."""
        for shelf in self.shelves:
            while shelf.evict_one():
                pass
        while self._evict_one():
            pass

    def take_copies(self) -> tuple[Copy, ...]:
        """What the runner must copy, in this order, before the next step's own work. Each is given once."""
        copies = tuple(self._copies)
        self._copies.clear()
        return copies

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
            host=tuple(host_stats(shelf) for shelf in self.host),
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
        resident = [node for node in matched if node.page != NO_PAGE]
        if pages - len(resident) > self.room - sum(not node.leases for node in resident):
            return False
        if self.state_kind and not self.state_kind.free_live:
            return False
        return all(
            kind.pages_at_admission(len(matched), pages) - len(matched) + kind.num_on_host(matched)
            <= kind.shelf.room - kind.num_unlocked(matched)
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
        page = self._tree.evict()
        if page is None:
            return False
        self._free.append(page)
        return True

    def _detach(self, node: Node) -> None:
        for shelf in self.shelves:
            shelf.detach(node)
        if self.host:
            self.host[0].forget(node)

    # The host tier

    def _host_shelves(self, host: Pools) -> list[HostShelf]:
        """One per kind, the full one first."""
        shelves = [HostShelf("full", 0, 0, host.num_pages, self._copies)]
        for index, pool in enumerate(host.windows):
            shelves.append(HostShelf("sliding", index, index + 1, pool.num_pages, self._copies))
        if host.states:
            shelves.append(HostShelf("state", 0, len(shelves), host.states.num_checkpoints, self._copies))
        for shelf, copy in zip(self.shelves, shelves[1:], strict=True):
            shelf.host = copy
        return shelves

    def _load(self, matched: list[Node]) -> None:
        """Brings the pages of a locked path that are on the host only back to the device."""
        missing = [node for node in matched if node.page == NO_PAGE]
        pages = self._take_pages(len(missing))
        if pages is None:
            raise EngineError(f"no room for {len(missing)} pages that the host has: {self.stats}")
        for node, page in zip(missing, pages, strict=True):
            self.host[0].load(node, page)
            self._tree.give_page(node, page)
            self._host_has_spare(node)

    def _host_has_spare(self, node: Node) -> None:
        if self.host:
            self.host[0].is_spare(node)

    def _forget_what_only_the_host_has(self) -> None:
        alone = [node for node in self._tree.nodes() if node.parent and node.page == NO_PAGE]
        for node in reversed(alone):  # children come after their parents
            self._tree.remove(node)


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


def host_stats(shelf: HostShelf) -> HostStats:
    return HostStats(
        kind=shelf.kind,
        size=shelf.size,
        free=shelf.num_free,
        spare=shelf.num_spare,
        stored=shelf.stored,
        loaded=shelf.loaded,
        dropped=shelf.dropped,
    )
