"""The host tier: copies of what has been evicted from the device, per kind.

    device place ──evict──▶ copy to the host, node stays ──hit──▶ copy back, and the host's copy is spare
                                   │
                                   └ no place: spare copies make way, then the oldest; a node without any page goes

A copy is only an entry in a list, which the next plan carries. The runner works through it in order, before the step's
own reads and writes. So a place may be given away the moment its copy is listed, and a request that goes away between
listing and copying leaves nothing half done.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from zerokl.cache.tree import Node
from zerokl.types import Copy, KindName

NOTHING = -1


class HostShelf:
    """Host places of one kind. A node's place is `node.host_places[place]`."""

    def __init__(self, kind: KindName, index: int, place: int, size: int, copies: list[Copy]) -> None:
        self.kind: KindName = kind
        self.size = size
        self.stored = self.loaded = self.dropped = 0
        self.on_drop: Callable[[Node], None] = lambda node: None
        """Called for a node that has lost its only copy."""
        self._index = index
        self._place = place
        self._copies = copies
        self._free = list(reversed(range(size)))
        self._spare: OrderedDict[int, Node] = OrderedDict()
        """Nodes with a place on the device as well."""
        self._lone: OrderedDict[int, Node] = OrderedDict()
        """Nodes whose only copy may be dropped; the first is dropped first."""

    def of(self, node: Node) -> int:
        """The node's place, or NOTHING."""
        return node.host_places[self._place]

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_spare(self) -> int:
        return len(self._spare)

    def keep(self, node: Node, source: int) -> bool:
        """The node is about to lose its device place: the host has its copy from now on. False: there is no room."""
        if self.of(node) == NOTHING:
            place = self._take()
            if place is None:
                return False
            node.host_places[self._place] = place
            self._copies.append(Copy(self.kind, self._index, source, place, to_host=True))
            self.stored += 1
        self._spare.pop(node.serial, None)
        return True

    def may_drop(self, node: Node) -> None:
        """The node's copy is its only one, and nobody needs it now."""
        self._lone[node.serial] = node

    def hold(self, node: Node) -> None:
        """The node's copy is needed: if it is the only one, it isn't dropped until it is spare."""
        self._lone.pop(node.serial, None)

    def load(self, node: Node, target: int) -> None:
        """Copies to a device place; the node's own copy stays as it is."""
        self._copies.append(Copy(self.kind, self._index, self.of(node), target, to_host=False))
        self.loaded += 1
        if node.serial in self._lone:
            self._lone.move_to_end(node.serial)

    def is_spare(self, node: Node) -> None:
        """The device has what this node's copy, if there is one, holds."""
        if self.of(node) != NOTHING:
            self._lone.pop(node.serial, None)
            self._spare[node.serial] = node

    def may_drop_next(self, node: Node) -> None:
        """The node's only copy has become droppable, and is older than all others."""
        self._lone[node.serial] = node
        self._lone.move_to_end(node.serial, last=False)

    def forget(self, node: Node) -> None:
        """The node leaves the tree."""
        if self.of(node) != NOTHING:
            self._release(node)

    def free_places(self) -> list[int]:
        """For `check`."""
        return self._free

    def droppable(self) -> tuple[set[int], set[int]]:
        """For `check`: serials of spare and of lone nodes."""
        return set(self._spare), set(self._lone)

    def _take(self) -> int | None:
        if not self._free:
            self._drop_one()
        return self._free.pop() if self._free else None

    def _drop_one(self) -> None:
        if self._spare:
            self._release(next(iter(self._spare.values())))
        elif self._lone:
            node = next(iter(self._lone.values()))
            self._release(node)
            self.dropped += 1
            self.on_drop(node)

    def _release(self, node: Node) -> None:
        self._free.append(self.of(node))
        node.host_places[self._place] = NOTHING
        self._spare.pop(node.serial, None)
        self._lone.pop(node.serial, None)
