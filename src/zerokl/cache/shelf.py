"""A shelf: the numbered places of one kind that hang on tree nodes and can be evicted without their node.

    free ──take──▶ private (somebody's) ──attach──▶ on a node, unlocked ◀──lock, unlock──▶ on a node, locked
      ▲               │ give_back                      │ evict the one unlocked or touched longest ago
      ├───────────────┘                                │ detach: the node leaves the tree
      └────────────────────────────────────────────────┘

Pages of a sliding kind and state checkpoints are both of this sort. The order of eviction is the order of calls: no
clock, and no number that a place happens to have.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from zerokl.cache.host import NOTHING, HostShelf
from zerokl.cache.tree import Node
from zerokl.errors import EngineError


class Shelf:
    """Places `first` .. `first + size - 1`. A node's place of this kind is `node.places[index]`."""

    def __init__(self, name: str, index: int, size: int, first: int = 0) -> None:
        self.name = name
        self.host: HostShelf | None = None
        self.index = index
        self.size = size
        self.first = first
        self.evicted = 0
        self._free = list(reversed(range(first, first + size)))
        self._unlocked: OrderedDict[int, Node] = OrderedDict()
        """By the node's serial; the first is evicted first."""

    @property
    def room(self) -> int:
        """Places that can be taken now: free ones, and unlocked ones by eviction."""
        return len(self._free) + len(self._unlocked)

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached(self) -> int:
        return len(self._unlocked)

    def of(self, node: Node) -> int:
        """The node's place, or NOTHING."""
        return node.places[self.index]

    def has(self, node: Node) -> bool:
        """Whether the node has what belongs here, on the device or on the host."""
        return self.of(node) != NOTHING or bool(self.host and self.host.of(node) != NOTHING)

    def locks_of(self, node: Node) -> int:
        return node.locks[self.index]

    def take(self, count: int) -> list[int] | None:
        """`count` places, evicting as needed; None, and nothing has changed, if there aren't so many."""
        if count > self.room:
            return None
        while len(self._free) < count:
            self.evict_one()
        return [self._free.pop() for _ in range(count)]

    def evict_one(self) -> bool:
        """Frees the place that was unlocked or touched longest ago; False if every place is locked, private or free."""
        if not self._unlocked:
            return False
        _, node = self._unlocked.popitem(last=False)
        if self.host and self.host.keep(node, self.of(node)):
            self.host.may_drop(node)
        self._free.append(node.places[self.index])
        node.places[self.index] = NOTHING
        self.evicted += 1
        return True

    def give_back(self, places: Iterable[int]) -> None:
        """Private places become free."""
        self._free.extend(places)

    def attach(self, node: Node, place: int) -> int:
        """The node gets a private place, or keeps the one that it has, and the other is freed. Returns the node's."""
        if self.of(node) == NOTHING:
            self.put(node, place)
            self._unlocked[node.serial] = node
        else:
            self._free.append(place)
            self.touch(node)
        return self.of(node)

    def put(self, node: Node, place: int) -> None:
        """The node, which has none, gets a place that holds, or is about to hold, what belongs there."""
        node.places[self.index] = place
        if self.host:
            self.host.is_spare(node)

    def load(self, nodes: list[Node]) -> None:
        """Brings what these locked nodes have on the host only back to the device. There must be room."""
        missing = [node for node in nodes if self.of(node) == NOTHING]
        lost = [node.serial for node in missing if not self.has(node)]
        places = self.take(len(missing))
        if lost or places is None:
            raise EngineError(f"can't load {len(missing)} {self.name} places: nodes {lost} have none, {places} to fill")
        for node, place in zip(missing, places, strict=True):
            assert self.host is not None
            self.host.load(node, place)
            self.put(node, place)

    def lock(self, node: Node) -> None:
        """Keeps the node's place until as many `unlock`s. One that is on the host only must be loaded before those."""
        node.locks[self.index] += 1
        self._unlocked.pop(node.serial, None)
        if self.host:
            self.host.hold(node)

    def unlock(self, node: Node) -> None:
        node.locks[self.index] -= 1
        if not node.locks[self.index]:
            self._unlocked[node.serial] = node

    def touch(self, node: Node) -> None:
        """As if it had been locked and unlocked now."""
        if node.serial in self._unlocked:
            self._unlocked.move_to_end(node.serial)

    def detach(self, node: Node) -> None:
        """The node, which nobody holds, leaves the tree: its place becomes free."""
        if self.of(node) != NOTHING:
            del self._unlocked[node.serial]
            self._free.append(node.places[self.index])
            node.places[self.index] = NOTHING
        if self.host:
            self.host.forget(node)

    def free_places(self) -> list[int]:
        """For `check`."""
        return self._free

    def unlocked_nodes(self) -> list[Node]:
        """For `check`, in the order of eviction."""
        return list(self._unlocked.values())
