"""The cache facade: every page is leased, cached or free, and a `Lease` is the only way to hold one.

    free ──reserve──▶ leased (private to one lease) ──computed: full page──▶ leased (in the tree, shared)
      ▲                   │ release                                              │ last release
      ├───────────────────┘                                                      ▼
      └────────────────────────────── evict (oldest, leaf first) ─────────── cached

"Now" is a count of given-back leases, never a clock, so the same calls evict the same pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zerokl.cache.tree import Node, PrefixTree, page_key
from zerokl.errors import EngineError
from zerokl.types import PageId


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Pages now, and what happened since the start (those counts only grow)."""

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


class Cache:
    """Pages of one kind (full attention), and the prefix tree over those that are full."""

    def __init__(self, num_pages: int, page_size: int, enabled: bool = True) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        self.enabled = enabled
        self._tree = PrefixTree(page_size)
        self._free = [PageId(page) for page in reversed(range(num_pages))]
        self._leases: dict[int, Lease] = {}
        self._now = 0
        self._leases_given = 0
        self._lookups = self._hits = self._lookup_tokens = self._hit_tokens = 0
        self._published = self._merged = self._evicted = self._flushes = 0

    def lease(self, tokens: Sequence[int], limit: int, salt: str = "", use_cache: bool = True) -> Lease:
        """A lease that starts with the longest cached prefix, in whole pages, of `tokens[:limit]`.

        Without eviction in between, `cached_tokens` is exactly page * floor(min(match, limit) / page).
        `use_cache=False`: neither reads the tree nor adds to it.
        """
        return self._give(*self._look_up(tokens, limit, salt, use_cache), limit)

    def lease_with_room(
        self, tokens: Sequence[int], limit: int, salt: str = "", use_cache: bool = True, *, num_tokens: int
    ) -> Lease | None:
        """`lease()` and `reserve(num_tokens)` in one, or None and nothing has changed, not even a count."""
        root, matched = self._look_up(tokens, limit, salt, use_cache)
        unlocked = sum(not node.leases for node in matched)
        if self.pages_for(num_tokens) - len(matched) > self.room - unlocked:
            return None
        lease = self._give(root, matched, limit)
        if not lease.reserve(num_tokens):
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
        )

    def _look_up(self, tokens: Sequence[int], limit: int, salt: str, use_cache: bool) -> tuple[str | None, list[Node]]:
        if not (use_cache and self.enabled):
            return None, []
        return salt, self._tree.match(salt, tokens, min(limit, len(tokens)))

    def _give(self, salt: str | None, matched: list[Node], limit: int) -> Lease:
        self._leases_given += 1
        root = None if salt is None else self._tree.root(salt)
        if root:
            self._lookups += 1
            self._hits += bool(matched)
            self._lookup_tokens += max(limit, 0)
            self._hit_tokens += len(matched) * self.page_size
        lease = Lease(self, self._leases_given, root, matched)
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


class Lease:
    """The pages of one running request. Give it back once, with `release`."""

    __slots__ = ("_cache", "_path", "cached_tokens", "pages", "released", "serial")

    def __init__(self, cache: Cache, serial: int, root: Node | None, matched: list[Node]) -> None:
        self.serial = serial
        self.cached_tokens = len(matched) * cache.page_size
        """Length of the prefix that was there when the lease was given."""
        self.pages: tuple[PageId, ...] = tuple(node.page for node in matched)
        """Page i holds positions [i * page_size, (i + 1) * page_size)."""
        self.released = False
        self._cache = cache
        self._path = [root, *matched] if root else []
        """The root, then one node per page that is in the tree; empty if the lease keeps out of it."""
        for node in self._path:
            cache._tree.lock(node)

    @property
    def path(self) -> list[Node]:
        """The nodes of the pages that are in the tree, without the root."""
        return self._path[1:]

    @property
    def root(self) -> Node | None:
        return self._path[0] if self._path else None

    def reserve(self, num_tokens: int) -> bool:
        """Makes room for all positions < num_tokens, evicting if need be. False: no room, and nothing has changed."""
        self._check_held()
        missing = self._cache.pages_for(num_tokens) - len(self.pages)
        if missing <= 0:
            return True
        taken = self._cache._take_pages(missing)
        if taken is None:
            return False
        self.pages += tuple(taken)
        return True

    def computed(self, tokens: Sequence[int], count: int) -> None:
        """The first `count` positions hold the keys of `tokens[:count]`: their full pages join the tree.

        Where another request has published the same page first, this lease goes on with that one and frees its own,
        so a request never holds a page twice. A step still in flight may read the freed page: steps run in the order
        of their submission, so nothing can be written to it before.
        """
        self._check_held()
        size = self._cache.page_size
        if count > len(self.pages) * size:
            raise EngineError(f"{count} tokens computed in a lease of {len(self.pages)} pages of {size}")
        if self._path:
            for index in range(len(self._path) - 1, count // size):
                self._publish(index, page_key(tokens, index * size, (index + 1) * size))

    def release(self) -> None:
        """Gives the lease back: pages in the tree stay cached, the rest become free. A second time raises."""
        self._check_held()
        self.released = True
        cache = self._cache
        private = self.pages[max(len(self._path) - 1, 0) :]
        cache._free.extend(reversed(private))
        cache._now += 1
        for node in reversed(self._path):
            cache._tree.unlock(node, cache._now)
        del cache._leases[self.serial]

    def _publish(self, index: int, key: bytes) -> None:
        cache, parent, page = self._cache, self._path[-1], self.pages[index]
        node = parent.children.get(key)
        if node is None:
            node = cache._tree.insert(parent, key, page)
            cache._published += 1
        else:
            cache._free.append(page)
            cache._merged += 1
            self.pages = (*self.pages[:index], node.page, *self.pages[index + 1 :])
        cache._tree.lock(node)
        self._path.append(node)

    def _check_held(self) -> None:
        if self.released:
            raise EngineError(f"lease {self.serial} was given back already")
