"""What the cache of several kinds must do, said the slow way: prefixes in dicts and lists, and no page numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from zerokl.types import Pools

Prefix = tuple[str, tuple[int, ...]]
"""(salt, the tokens of one or more whole pages)."""


@dataclass
class ModelShelf:
    """Window pages or checkpoints: which prefixes have one, who locks it, and in which order they would fall out."""

    size: int
    locks: dict[Prefix, int] = field(default_factory=dict)
    order: list[Prefix] = field(default_factory=list)
    private: int = 0

    @property
    def free(self) -> int:
        return self.size - self.private - len(self.locks)

    @property
    def room(self) -> int:
        return self.free + len(self.order)

    def take(self, count: int) -> None:
        while self.free < count:
            del self.locks[self.order.pop(0)]
        self.private += count

    def attach(self, prefix: Prefix) -> None:
        self.private -= 1
        self.locks.setdefault(prefix, 0)
        if not self.locks[prefix]:
            self.order = [one for one in self.order if one != prefix] + [prefix]

    def lock(self, prefix: Prefix) -> None:
        self.locks[prefix] += 1
        self.order = [one for one in self.order if one != prefix]

    def unlock(self, prefix: Prefix) -> None:
        self.locks[prefix] -= 1
        if not self.locks[prefix]:
            self.order.append(prefix)

    def drop(self, prefix: Prefix) -> None:
        self.locks.pop(prefix, None)
        self.order = [one for one in self.order if one != prefix]


@dataclass
class Entry:
    last_used: int = 0
    locks: int = 0


@dataclass
class ModelLease:
    """What one request holds, in counts and prefixes."""

    salt: str | None
    tokens: list[int]
    matched: int
    """Pages."""
    path: list[Prefix]
    pages: int
    first: list[int]
    """Per sliding kind: the first page held."""
    end: list[int]
    pinned: Prefix | None
    checkpoints: list[int] = field(default_factory=list)
    """Positions whose slots are taken and not published."""
    computed: int = 0


@dataclass
class ModelCache:
    pools: Pools
    entries: dict[Prefix, Entry] = field(default_factory=dict)
    private: int = 0
    now: int = 0
    live: int = 0

    def __post_init__(self) -> None:
        self.windows = [ModelShelf(pool.num_pages) for pool in self.pools.windows]
        self.states = ModelShelf(self.pools.states.num_checkpoints if self.pools.states else 0)
        self.size = self.pools.page_size
        self.step = self.pools.states.interval // self.size if self.pools.states else 1

    # What is there

    @property
    def free(self) -> int:
        return self.pools.num_pages - self.private - len(self.entries)

    @property
    def room(self) -> int:
        return self.free + sum(not entry.locks for entry in self.entries.values())

    def prefix(self, salt: str, tokens: Sequence[int], pages: int) -> Prefix:
        return salt, tuple(tokens[: pages * self.size])

    def seen_before(self, kind: int, page: int) -> range:
        """Pages that hold keys which a token at the start of `page` sees, from before it."""
        first = max(0, page * self.size - self.pools.windows[kind].window + 1)
        return range(first // self.size, page)

    def lacks(self, salt: str, tokens: Sequence[int], pages: int) -> str | None:
        """The first kind that lacks something for a request that goes on after so many pages."""
        for kind, shelf in enumerate(self.windows):
            if any(self.prefix(salt, tokens, page + 1) not in shelf.locks for page in self.seen_before(kind, pages)):
                return "sliding"
        return "state" if self.pools.states and self.prefix(salt, tokens, pages) not in self.states.locks else None

    def match(self, salt: str, tokens: Sequence[int], limit: int) -> tuple[int, str]:
        """(pages, why not one interval more)."""
        path = 0
        while (path + 1) * self.size <= min(limit, len(tokens)):
            if self.prefix(salt, tokens, path + 1) not in self.entries:
                break
            path += 1
        good = [page for page in range(self.step, path + 1, self.step) if self.lacks(salt, tokens, page) is None]
        pages = max(good, default=0)
        if pages + self.step <= path:
            return pages, self.lacks(salt, tokens, pages + self.step) or "nothing"
        return pages, "limit" if (pages + self.step) * self.size > limit else "full"

    # Leases

    def admission_ends(self, matched: int, pages: int) -> list[int]:
        """How far sliding pages are taken when a request is let in: a window and a page ahead, or what there is."""
        ends = []
        for kind, shelf in enumerate(self.windows):
            span = -(-(self.pools.windows[kind].window - 1) // self.size)
            ends.append(min(pages, matched + min(span + 1, shelf.size - len(self.seen_before(kind, matched)))))
        return ends

    def admits(self, salt: str, tokens: Sequence[int], matched: int, pages: int) -> bool:
        own = [self.prefix(salt, tokens, page + 1) for page in range(matched)]
        unlocked = sum(not self.entries[one].locks for one in own)
        fits = pages - matched <= self.room - unlocked
        for kind, end in enumerate(self.admission_ends(matched, pages)):
            shelf = self.windows[kind]
            needed = [own[page] for page in self.seen_before(kind, matched)]
            fits &= end - matched <= shelf.room - sum(one in shelf.order for one in needed)
        return fits and not (self.pools.states and self.live == self.pools.states.num_live)

    def give(self, salt: str | None, tokens: Sequence[int], matched: int) -> ModelLease:
        path = [self.prefix(salt or "", tokens, page + 1) for page in range(matched)]
        for one in path:
            self.entries[one].locks += 1
        first = [min(self.seen_before(kind, matched), default=matched) for kind in range(len(self.windows))]
        for kind, shelf in enumerate(self.windows):
            for page in self.seen_before(kind, matched):
                shelf.lock(path[page])
        pinned = path[-1] if path and self.pools.states else None
        if pinned:
            self.states.lock(pinned)
        self.live += 1
        computed = matched * self.size
        return ModelLease(
            salt, list(tokens), matched, path, matched, first, [matched] * len(first), pinned, computed=computed
        )

    def can_grow(self, lease: ModelLease, pages: int, ends: Sequence[int]) -> bool:
        fits = pages - lease.pages <= self.room
        return fits and all(
            end - held <= shelf.room for end, held, shelf in zip(ends, lease.end, self.windows, strict=True)
        )

    def grow(self, lease: ModelLease, pages: int, ends: Sequence[int]) -> None:
        missing = max(0, pages - lease.pages)
        while self.free < missing:
            self.evict()
        self.private += missing
        lease.pages += missing
        for kind, shelf in enumerate(self.windows):
            shelf.take(max(0, ends[kind] - lease.end[kind]))
            lease.end[kind] = max(lease.end[kind], ends[kind])

    def checkpoints(self, lease: ModelLease, start: int, end: int) -> list[int]:
        """Positions that a step writes, as many of the last as there is room for."""
        if lease.salt is None or not self.pools.states:
            return []
        interval = self.pools.states.interval
        wanted = [position for position in range(start + 1, end + 1) if position % interval == 0]
        kept = wanted[max(0, len(wanted) - self.states.room) :]
        self.states.take(len(kept))
        lease.checkpoints += kept
        return kept

    def compute(self, lease: ModelLease, tokens: Sequence[int], count: int) -> None:
        lease.tokens, lease.computed = list(tokens), count
        if lease.salt is not None:
            for page in range(len(lease.path), count // self.size):
                self.publish(lease, page)
        for kind, shelf in enumerate(self.windows):
            seen = max(0, count - self.pools.windows[kind].window + 1) // self.size
            for page in range(lease.first[kind], min(seen, lease.end[kind])):
                self.let_go(shelf, lease, page)
            lease.first[kind] = max(lease.first[kind], min(seen, lease.end[kind]))
        self.unpin(lease)

    def publish(self, lease: ModelLease, page: int) -> None:
        prefix = self.prefix(lease.salt or "", lease.tokens, page + 1)
        self.entries.setdefault(prefix, Entry()).locks += 1
        self.private -= 1
        lease.path.append(prefix)
        for shelf in self.windows:
            shelf.attach(prefix)
            shelf.lock(prefix)
        position = (page + 1) * self.size
        if position in lease.checkpoints:
            lease.checkpoints.remove(position)
            self.states.attach(prefix)

    def let_go(self, shelf: ModelShelf, lease: ModelLease, page: int) -> None:
        if page < len(lease.path):
            shelf.unlock(lease.path[page])
        else:
            shelf.private -= 1

    def unpin(self, lease: ModelLease) -> None:
        if lease.pinned:
            self.states.unlock(lease.pinned)
            lease.pinned = None

    def release(self, lease: ModelLease) -> None:
        for kind, shelf in enumerate(self.windows):
            for page in range(lease.first[kind], lease.end[kind]):
                self.let_go(shelf, lease, page)
        self.unpin(lease)
        self.states.private -= len(lease.checkpoints)
        self.live -= 1
        self.private -= lease.pages - len(lease.path)
        self.now += 1
        for prefix in lease.path:
            self.entries[prefix].locks -= 1
            if not self.entries[prefix].locks:
                self.entries[prefix].last_used = self.now

    def evict(self) -> None:
        parents = {(salt, tokens[: -self.size]) for salt, tokens in self.entries}
        leaves = [prefix for prefix, entry in self.entries.items() if not entry.locks and prefix not in parents]
        oldest = min(leaves, key=lambda prefix: self.entries[prefix].last_used)
        del self.entries[oldest]
        for shelf in (*self.windows, self.states):
            shelf.drop(oldest)
