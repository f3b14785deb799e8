"""Pages of one sliding kind: a lease holds a run of them that moves on with its window.

pages       ... 4     5     6     7     8        a window of W keys before position t, and t's own page
                ▲ let go, cached in its node     ▲ end: reserved up to here
                      ▲ first: holds position t - W + 1
"""

from __future__ import annotations

from zerokl.cache.host import NOTHING
from zerokl.cache.shelf import Shelf
from zerokl.cache.tree import Node
from zerokl.types import PageId, WindowPages, WindowPool


class WindowKind:
    """The pool of one sliding kind, and how far its window reaches."""

    def __init__(self, pool: WindowPool, index: int, page_size: int) -> None:
        self.window = pool.window
        self.page_size = page_size
        self.shelf = Shelf("sliding", index, pool.num_pages)
        self.span = -(-(pool.window - 1) // page_size)
        """Pages before a boundary that a request which goes on there needs."""

    @property
    def needed_alone(self) -> int:
        """Pages without which no long request can progress: a window's, and that of the token itself."""
        return self.span + 1

    def first_seen(self, position: int) -> int:
        """The page that holds the first key which the token at `position` sees."""
        return max(0, (position - self.window + 1) // self.page_size)

    def pages_at_admission(self, matched: int, pages: int) -> int:
        """The page up to which an admission takes pages: a window ahead, so that the newly admitted don't fight."""
        ahead = min(self.needed_alone, self.shelf.size - min(matched, self.span))
        return min(pages, matched + ahead)

    def num_unlocked(self, matched: list[Node]) -> int:
        """Of the pages that a lease of these nodes would lock, those that count as room now."""
        needed = self.needed_of(matched)
        return sum(self.shelf.of(node) != NOTHING and not self.shelf.locks_of(node) for node in needed)

    def num_on_host(self, matched: list[Node]) -> int:
        """Of those pages, those that have to be loaded."""
        return sum(self.shelf.of(node) == NOTHING for node in self.needed_of(matched))

    def needed_of(self, matched: list[Node]) -> list[Node]:
        return matched[max(0, len(matched) - self.span) :]


class WindowHold:
    """The pages of one sliding kind that a lease holds: locked in their nodes, or private."""

    __slots__ = ("_kind", "_pages", "first")

    def __init__(self, kind: WindowKind, matched: list[Node]) -> None:
        needed = kind.needed_of(matched)
        self.first = len(matched) - len(needed)
        self._kind = kind
        for node in needed:
            kind.shelf.lock(node)
        kind.shelf.load(needed)
        self._pages = [kind.shelf.of(node) for node in needed]

    @property
    def end(self) -> int:
        return self.first + len(self._pages)

    @property
    def room(self) -> int:
        return self._kind.shelf.room

    def missing(self, pages: int) -> int:
        return max(0, pages - self.end)

    def grow(self, pages: int) -> bool:
        """Takes what is missing up to page `pages`."""
        taken = self._kind.shelf.take(self.missing(pages))
        if taken is None:
            return False
        self._pages += taken
        return True

    def publish(self, index: int, node: Node) -> None:
        """Page `index` belongs to the node now; a page that the node has already takes its place here."""
        shelf = self._kind.shelf
        self._pages[index - self.first] = shelf.attach(node, self._pages[index - self.first])
        shelf.lock(node)

    def move_on(self, count: int, path: list[Node]) -> None:
        """Lets go of pages that no token from position `count` on sees; `path`: the nodes of those published."""
        first = min(self._kind.first_seen(count), self.end)
        if first > self.first:
            self._let_go(path[self.first : first], self._pages[: first - self.first])
            self._pages = self._pages[first - self.first :]
            self.first = first

    def release(self, path: list[Node]) -> None:
        self._let_go(path[self.first :], self._pages)
        self._pages = []

    def _let_go(self, nodes: list[Node], pages: list[int]) -> None:
        for node in nodes:
            self._kind.shelf.unlock(node)
        self._kind.shelf.give_back(reversed(pages[len(nodes) :]))

    def pages(self) -> WindowPages:
        return WindowPages(self.first, tuple(PageId(page) for page in self._pages))

    def private_pages(self, path: list[Node]) -> list[int]:
        """For `check`."""
        return self._pages[max(0, len(path) - self.first) :]

    def locked_nodes(self, path: list[Node]) -> list[Node]:
        """For `check`."""
        return path[self.first :]

    def agrees_with(self, path: list[Node]) -> bool:
        """For `check`: the pages are those of the nodes."""
        places = [self._kind.shelf.of(node) for node in path[self.first :]]
        return places == self._pages[: len(places)] and NOTHING not in places
