"""The proof that a cache is whole: what must hold between any two calls."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from zerokl.cache.tree import NO_PAGE, Node, PrefixTree, is_evictable
from zerokl.errors import EngineError
from zerokl.types import PageId

if TYPE_CHECKING:
    from zerokl.cache.host import HostShelf
    from zerokl.cache.lease import Lease
    from zerokl.cache.pages import Cache
    from zerokl.cache.shelf import Shelf


def check(cache: Cache, tree: PrefixTree, free: list[PageId], leases: list[Lease]) -> None:
    """Raises EngineError with the first broken rule."""
    nodes = list(tree.nodes())
    _every_page_has_one_owner(cache, nodes, free, leases)
    _counts_add_up(cache, tree, nodes)
    _locks_are_the_leases(nodes, leases)
    _leases_follow_the_tree(leases)
    _tree_is_whole(tree, nodes)
    _all_unlocked_leaves_can_be_evicted(tree, nodes)
    for place, shelf in enumerate(cache.shelves):
        holds = [lease.windows[place] for lease in leases] if place < len(cache.window_kinds) else []
        private = [page for lease, hold in zip(leases, holds, strict=False) for page in hold.private_pages(lease.path)]
        locked = [node for lease, hold in zip(leases, holds, strict=False) for node in hold.locked_nodes(lease.path)]
        for lease, hold in zip(leases, holds, strict=False):
            _require(hold.agrees_with(lease.path), f"lease {lease.serial} has other sliding pages than the tree")
        if place == len(cache.window_kinds):
            private = [slot for lease in leases if lease.state for slot in lease.state.written.values()]
            locked = [lease.state.pinned for lease in leases if lease.state and lease.state.pinned]
        _a_shelf_adds_up(shelf, nodes, private, locked)
    _live_slots_and_checkpoints_are_in_place(cache, nodes, leases)
    for place, host in enumerate(cache.host):
        _a_host_shelf_adds_up(cache, host, place, nodes)


def _every_page_has_one_owner(cache: Cache, nodes: list[Node], free: list[PageId], leases: list[Lease]) -> None:
    owned = [node.page for node in nodes if node.page != NO_PAGE]
    private = [page for lease in leases for page in lease.pages[len(lease.path) :]]
    pages = [*free, *owned, *private]
    _require(
        sorted(pages) == list(range(cache.num_pages)),
        f"pages lost or owned twice: free {free}, in the tree {owned}, private {private}",
    )


def _counts_add_up(cache: Cache, tree: PrefixTree, nodes: list[Node]) -> None:
    stats = cache.stats
    _require(stats.free + stats.cached + stats.leased == stats.num_pages, f"counts don't add up: {stats}")
    _require(min(stats.free, stats.cached, stats.leased) >= 0, f"a negative count: {stats}")
    in_tree = [node for node in nodes if node.page != NO_PAGE]
    _require(tree.num_pages == len(in_tree), f"{tree.num_pages} pages counted, {len(in_tree)} in the tree")
    unlocked = sum(not node.leases for node in in_tree)
    _require(tree.num_unlocked == unlocked, f"{tree.num_unlocked} unlocked counted, {unlocked} found")


def _locks_are_the_leases(nodes: list[Node], leases: list[Lease]) -> None:
    locks = Counter(node.serial for lease in leases if lease.root for node in (lease.root, *lease.path))
    for node in nodes:
        expected = locks[node.serial]
        _require(node.leases == expected, f"node {node.serial} has {node.leases} locks, not {expected}")
    _require(set(locks) <= {node.serial for node in nodes}, "a lease holds a node that is no longer in the tree")


def _leases_follow_the_tree(leases: list[Lease]) -> None:
    for lease in leases:
        _require(not lease.released, f"lease {lease.serial} is given back and still listed")
        pages = tuple(node.page for node in lease.path)
        _require(lease.pages[: len(pages)] == pages, f"lease {lease.serial} has {lease.pages}, the tree {pages}")
        for parent, node in zip((lease.root, *lease.path), lease.path, strict=False):
            _require(node.parent is parent, f"lease {lease.serial} leaves the tree at node {node.serial}")


def _tree_is_whole(tree: PrefixTree, nodes: list[Node]) -> None:
    for node in nodes:
        _require(bool(node.parent or node.leases or node.children), f"the root of salt {node.key!r} is bare")
        paged_children = sum(child.page != NO_PAGE for child in node.children.values())
        _require(node.num_paged_children == paged_children, f"node {node.serial} miscounts children with a page")
        for key, child in node.children.items():
            _require(child.parent is node and child.key == key, f"node {child.serial} doesn't know its place")
            _require(len(key) == 4 * tree.page_size, f"node {child.serial} isn't a whole page")
            _require(node.leases >= child.leases, f"node {child.serial} has more locks than its parent")
            paged = node.page != NO_PAGE or node.parent is None or child.page == NO_PAGE
            _require(paged, f"node {child.serial} has a page and its parent hasn't")
            older = node.leases or node.last_used >= child.last_used
            _require(bool(older), f"node {child.serial} was used after its parent")


def _all_unlocked_leaves_can_be_evicted(tree: PrefixTree, nodes: list[Node]) -> None:
    listed = {(serial, last_used) for last_used, serial, _ in tree.heap_entries()}
    for node in nodes:
        known = not is_evictable(node) or (node.serial, node.last_used) in listed
        _require(known, f"node {node.serial} can be evicted and isn't listed")


def _a_shelf_adds_up(shelf: Shelf, nodes: list[Node], private: list[int], locked: list[Node]) -> None:
    """Every place has one owner, and is evictable exactly if it is on a node that nobody locks."""
    on_nodes = [node for node in nodes if shelf.of(node) >= 0]
    owned = [*shelf.free_places(), *private, *(shelf.of(node) for node in on_nodes)]
    expected = list(range(shelf.first, shelf.first + shelf.size))
    _require(sorted(owned) == expected, f"{shelf.name} places lost or owned twice: {owned}, private {private}")
    locks = Counter(node.serial for node in locked)
    for node in nodes:
        found = shelf.locks_of(node)
        _require(found == locks[node.serial], f"{shelf.name}: node {node.serial} has {found} locks")
        _require(shelf.of(node) >= 0 or not found, f"{shelf.name}: a lock on nothing at node {node.serial}")
    unlocked = {node.serial for node in on_nodes if not locks[node.serial]}
    _require({node.serial for node in shelf.unlocked_nodes()} == unlocked, f"{shelf.name}: wrong evictable places")


def _a_host_shelf_adds_up(cache: Cache, host: HostShelf, place: int, nodes: list[Node]) -> None:
    """Every host place has one owner; what may be dropped is spare, or needed by nobody and below nothing."""
    kept = [node for node in nodes if node.host_places[place] >= 0]
    owned = [*host.free_places(), *(host.of(node) for node in kept)]
    _require(sorted(owned) == list(range(host.size)), f"host places of {host.kind} lost or owned twice: {owned}")
    on_device = {node.serial for node in kept if (node.page if not place else node.places[place - 1]) >= 0}
    alone = [node for node in kept if node.serial not in on_device]
    droppable = {node.serial for node in alone if place or not node.children}
    _require(host.droppable() == (on_device, droppable), f"host copies of {host.kind}: wrong ones may be dropped")
    if not place:
        lost = [node.serial for node in nodes if node.parent and node.page == NO_PAGE and host.of(node) < 0]
        _require(not lost, f"nodes without any page: {lost}")


def _live_slots_and_checkpoints_are_in_place(cache: Cache, nodes: list[Node], leases: list[Lease]) -> None:
    kind = cache.state_kind
    if kind is None:
        return
    live = [*kind.free_live, *(lease.state.live for lease in leases if lease.state)]
    _require(sorted(live) == list(range(kind.num_live)), f"live slots lost or owned twice: {live}")
    depths: dict[int, int] = {}
    for node in nodes:
        depths[node.serial] = depths[node.parent.serial] + 1 if node.parent else 0
        on_grid = depths[node.serial] * cache.page_size % kind.interval == 0
        _require(on_grid or kind.shelf.of(node) < 0, f"node {node.serial} has a checkpoint between two intervals")


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise EngineError(f"cache check: {message}")
