"""The memory of one running request, of every kind: the only way to hold a page or a slot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from zerokl.cache.match import Stop
from zerokl.cache.states import StateHold
from zerokl.cache.tree import NO_PAGE, Node, page_key
from zerokl.cache.windows import WindowHold
from zerokl.errors import EngineError
from zerokl.types import PageId, StateUse, WindowPages

if TYPE_CHECKING:
    from zerokl.cache.pages import Cache


class Lease:
    """The pages and the state of one running request. Give it back once, with `release`."""

    __slots__ = ("_cache", "_path", "cached_tokens", "pages", "released", "serial", "state", "stopped_by", "windows")

    def __init__(self, cache: Cache, serial: int, root: Node | None, matched: list[Node], stopped_by: Stop) -> None:
        self.serial = serial
        self.cached_tokens = len(matched) * cache.page_size
        """Length of the prefix that was there when the lease was given."""
        self.stopped_by = stopped_by
        """Why it wasn't longer."""
        self.released = False
        self._cache = cache
        self._path = [root, *matched] if root else []
        """The root, then one node per page that is in the tree; empty if the lease keeps out of it."""
        for node in self._path:
            cache._tree.lock(node)
        cache._load(matched)
        self.pages: tuple[PageId, ...] = tuple(node.page for node in matched)
        """Page i holds positions [i * page_size, (i + 1) * page_size)."""
        self.windows = [WindowHold(kind, matched) for kind in cache.window_kinds]
        self.state = StateHold(cache.state_kind, matched, self.cached_tokens) if cache.state_kind else None

    @property
    def path(self) -> list[Node]:
        """The nodes of the pages that are in the tree, without the root."""
        return self._path[1:]

    @property
    def root(self) -> Node | None:
        return self._path[0] if self._path else None

    @property
    def reach(self) -> int:
        """`reserve` would make room for so many positions now."""
        ends = [len(self.pages) + self._cache.room, *(hold.end + hold.room for hold in self.windows)]
        return min(ends) * self._cache.page_size

    def reserve(self, num_tokens: int) -> bool:
        """Makes room for all positions < num_tokens, evicting if need be. False: no room, and nothing has changed."""
        pages = self._cache.pages_for(num_tokens)
        return self._grow(pages, [pages] * len(self.windows))

    def reserve_at_admission(self, num_tokens: int) -> bool:
        """As `reserve`, but of a sliding kind only what a request needs to be on its way."""
        pages, matched = self._cache.pages_for(num_tokens), len(self.pages)
        return self._grow(pages, [kind.pages_at_admission(matched, pages) for kind in self._cache.window_kinds])

    def window_pages(self) -> tuple[WindowPages, ...]:
        """What a segment names of each sliding kind."""
        return tuple(hold.pages() for hold in self.windows)

    def state_use(self, start: int, end: int) -> StateUse | None:
        """For a segment of positions start .. end - 1, which is planned now: takes slots for its checkpoints."""
        return self.state.use(start, end, keeps=bool(self._path)) if self.state else None

    def computed(self, tokens: Sequence[int], count: int) -> None:
        """The first `count` positions hold the keys of `tokens[:count]`: their full pages join the tree.

        Where another request has published the same page first, this lease goes on with that one and frees its own,
        so a request never holds a page twice. A step still in flight may read the freed page: steps run in the order
        of their submission, so nothing can be written to it before. The same goes for pages that a window has passed.
        """
        self._check_held()
        size = self._cache.page_size
        if count > len(self.pages) * size:
            raise EngineError(f"{count} tokens computed in a lease of {len(self.pages)} pages of {size}")
        if self._path:
            for index in range(len(self._path) - 1, count // size):
                self._publish(index, page_key(tokens, index * size, (index + 1) * size))
        for hold in self.windows:
            hold.move_on(count, self.path)
        if self.state:
            self.state.unpin()

    def release(self) -> None:
        """Gives the lease back: pages in the tree stay cached, the rest become free. A second time raises."""
        self._check_held()
        self.released = True
        cache = self._cache
        for hold in self.windows:
            hold.release(self.path)
        if self.state:
            self.state.release()
        private = self.pages[max(len(self._path) - 1, 0) :]
        cache._free.extend(reversed(private))
        cache._now += 1
        for node in reversed(self._path):
            cache._tree.unlock(node, cache._now)
        del cache._leases[self.serial]

    def _grow(self, pages: int, window_pages: Sequence[int]) -> bool:
        self._check_held()
        if any(hold.missing(end) > hold.room for hold, end in zip(self.windows, window_pages, strict=True)):
            return False
        missing = pages - len(self.pages)
        if missing > 0:
            taken = self._cache._take_pages(missing)
            if taken is None:
                return False
            self.pages += tuple(taken)
        return all(hold.grow(end) for hold, end in zip(self.windows, window_pages, strict=True))

    def _publish(self, index: int, key: bytes) -> None:
        cache, parent, page = self._cache, self._path[-1], self.pages[index]
        node = parent.children.get(key)
        if node is None:
            node = cache._tree.insert(parent, key, page)
            cache._published += 1
        elif node.page == NO_PAGE:
            cache._tree.give_page(node, page)
            cache._host_has_spare(node)
        else:
            cache._free.append(page)
            cache._merged += 1
            self.pages = (*self.pages[:index], node.page, *self.pages[index + 1 :])
        cache._tree.lock(node)
        self._path.append(node)
        for hold in self.windows:
            hold.publish(index, node)
        if self.state:
            self.state.publish((index + 1) * cache.page_size, node)

    def _check_held(self) -> None:
        if self.released:
            raise EngineError(f"lease {self.serial} was given back already")
