"""The prefix tree: one node per full page, found by (parent, the page's token ids).

    root of a salt ─▶ page of tokens 0..63 ─▶ page of tokens 64..127 ─▶ ...
                                          └─▶ another continuation

A node per page, not a radix tree of runs: a match is one dict lookup per page whatever the number of branches, nothing
is ever split, and what belongs to a page boundary (a sliding kind's page, a state checkpoint: see `shelf.py`) is a
field of the node at that boundary.

A lease locks every node of its path, so a locked node's ancestors are locked too and an unlocked node has only
unlocked descendants: all unlocked pages can be evicted, leaf first, without orphaning one.

With a host tier a node outlives its page: it keeps a copy on the host and has no page (`page` is -1). Nodes with a page
are a tree at the root's end, and "leaf" above means a node without children that have a page.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from zerokl.types import PageId

if TYPE_CHECKING:
    from zerokl.cache.host import HostShelf

NO_PAGE = PageId(-1)


class Node:
    """One full page of one prefix. `page` is NO_PAGE at a root, and where only the host has it."""

    __slots__ = (
        "children",
        "host_places",
        "key",
        "last_used",
        "leases",
        "locks",
        "num_paged_children",
        "page",
        "parent",
        "places",
        "serial",
    )

    def __init__(
        self, parent: Node | None, key: bytes | str, page: PageId, serial: int, num_shelves: int, num_host_kinds: int
    ) -> None:
        self.parent = parent
        self.key = key
        self.page = page
        self.serial = serial
        self.children: dict[bytes, Node] = {}
        self.num_paged_children = 0
        self.leases = 0
        self.last_used = 0
        self.places = [-1] * num_shelves
        """By shelf: the node's page of a sliding kind or its checkpoint; -1: none."""
        self.locks = [0] * num_shelves
        self.host_places = [-1] * num_host_kinds
        """By kind, the full one first: the node's copy on the host; -1: none. Empty without a host tier."""


class PrefixTree:
    """Full pages by what they hold. It owns the pages of its nodes; whoever locks a node may read them."""

    def __init__(self, page_size: int, num_shelves: int = 0, host: HostShelf | None = None) -> None:
        self.page_size = page_size
        self.num_shelves = num_shelves
        self.host = host
        self.on_remove: Callable[[Node], None] = lambda node: None
        """What else hangs on a node that leaves the tree is its owner's to free."""
        self.num_pages = 0
        self.num_unlocked = 0
        self._roots: dict[str, Node] = {}
        self._oldest: list[tuple[int, int, Node]] = []
        """A heap of (last_used, serial, node) of unlocked leaves. Stale entries are skipped when they surface."""
        self._serial = 0

    def root(self, salt: str) -> Node:
        """The root of the prefixes of one salt, made if it isn't there; lock it or it may be dropped."""
        if salt not in self._roots:
            self._roots[salt] = self._new_node(None, salt, NO_PAGE)
        return self._roots[salt]

    def match(self, salt: str, tokens: Sequence[int], limit: int) -> list[Node]:
        """The deepest path of whole pages that holds a prefix of `tokens[:limit]`. Changes nothing."""
        path: list[Node] = []
        node = self._roots.get(salt)
        size = self.page_size
        for end in range(size, limit + 1, size):
            node = node.children.get(page_key(tokens, end - size, end)) if node else None
            if node is None:
                break
            path.append(node)
        return path

    def insert(self, parent: Node, key: bytes, page: PageId) -> Node:
        """Gives `page` to the tree as the child of a locked parent that has no such child; the node is unlocked."""
        node = parent.children[key] = self._new_node(parent, key, NO_PAGE)
        self.give_page(node, page)
        return node

    def give_page(self, node: Node, page: PageId) -> None:
        """`page` holds what the node's tokens say; the node, which has none, has it from now on."""
        assert node.parent is not None
        node.page = page
        node.parent.num_paged_children += 1
        self.num_pages += 1
        self.num_unlocked += not node.leases

    def lock(self, node: Node) -> None:
        """Keeps a node. One without a page must be given one before it is unlocked."""
        if node.page != NO_PAGE and not node.leases:
            self.num_unlocked -= 1
        node.leases += 1
        if self.host:
            self.host.hold(node)

    def unlock(self, node: Node, now: int) -> None:
        """Undoes one `lock` at the logical time `now`. Unlock a path from its deepest node up."""
        node.leases -= 1
        if node.leases:
            return
        node.last_used = now
        if node.parent:
            self.num_unlocked += 1
        self._maybe_evictable(node)

    def evict(self) -> PageId | None:
        """Takes the page of the unlocked leaf that was given back longest ago; None if every page is locked.

        The node stays if the host takes a copy.
        """
        while self._oldest:
            last_used, _, node = heapq.heappop(self._oldest)
            if not is_evictable(node) or node.last_used != last_used:
                continue
            page, parent = node.page, node.parent
            assert parent is not None
            stays = bool(self.host and self.host.keep(node, page))
            node.page = NO_PAGE
            parent.num_paged_children -= 1
            self.num_pages -= 1
            self.num_unlocked -= 1
            if not stays:
                self._take_out(node)
            elif self.host and not node.children:
                self.host.may_drop(node)
            self._maybe_evictable(parent)
            return page
        return None

    def remove(self, node: Node) -> None:
        """Takes out an unlocked node that has neither a page nor children."""
        parent = node.parent
        assert parent is not None
        self._take_out(node)
        is_alone = parent.parent and parent.page == NO_PAGE and not parent.children
        if self.host and is_alone and not parent.leases:  # a locked one is about to be loaded
            self.host.may_drop_next(parent)
        self._maybe_evictable(parent)

    def nodes(self) -> Iterator[Node]:
        """Every node, roots too, each before its children."""
        stack = list(self._roots.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def heap_entries(self) -> list[tuple[int, int, Node]]:
        """The eviction heap, stale entries too: for `check`."""
        return self._oldest

    def _new_node(self, parent: Node | None, key: bytes | str, page: PageId) -> Node:
        self._serial += 1
        host_kinds = self.num_shelves + 1 if self.host else 0
        return Node(parent, key, page, self._serial, self.num_shelves, host_kinds)

    def _take_out(self, node: Node) -> None:
        assert node.parent is not None
        assert isinstance(node.key, bytes)
        del node.parent.children[node.key]
        node.parent = None
        self.on_remove(node)

    def _maybe_evictable(self, node: Node) -> None:
        """Lists an unlocked leaf for eviction, and drops a root with nothing below it (salts come and go)."""
        if node.leases or node.num_paged_children:
            return
        if node.parent is None:
            if not node.children:
                assert isinstance(node.key, str)
                del self._roots[node.key]
            return
        if node.page == NO_PAGE:
            return
        heapq.heappush(self._oldest, (node.last_used, node.serial, node))
        if len(self._oldest) > 2 * self.num_pages + 64:
            self._drop_stale_entries()

    def _drop_stale_entries(self) -> None:
        live = [entry for entry in self._oldest if is_evictable(entry[2]) and entry[0] == entry[2].last_used]
        heapq.heapify(live)
        self._oldest = live


def is_evictable(node: Node) -> bool:
    """An unlocked leaf that is still in the tree and has a page."""
    return node.parent is not None and node.page != NO_PAGE and not node.leases and not node.num_paged_children


def page_key(tokens: Sequence[int], start: int, end: int) -> bytes:
    """The ids of one page as int32: compact, and hashed faster than a tuple (the bytes object keeps its hash)."""
    return array("i", tokens[start:end]).tobytes()
