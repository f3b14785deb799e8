"""State slots: a live one per lease, and checkpoints that hang on the nodes at multiples of the interval.

plan      takes a slot for each checkpoint that the step will write; without room it isn't written
commit    the node gets it, or has one already
hit       the lease starts from the node's checkpoint, which is pinned until the first step is committed
"""

from __future__ import annotations

from zerokl.cache.host import NOTHING
from zerokl.cache.shelf import Shelf
from zerokl.cache.tree import Node
from zerokl.errors import EngineError
from zerokl.types import ZERO_STATE, StatePool, StateSlot, StateUse


class StateKind:
    """The pools of live slots and of checkpoints."""

    def __init__(self, pool: StatePool, index: int, page_size: int) -> None:
        if pool.interval % page_size:
            raise ValueError(f"a checkpoint interval of {pool.interval} isn't a multiple of the page, {page_size}")
        self.interval = pool.interval
        self.num_live = pool.num_live
        self.shelf = Shelf("state", index, pool.num_checkpoints, first=pool.num_live)
        self.free_live = list(reversed(range(pool.num_live)))
        self.skipped = 0
        """Checkpoints that weren't written because there was no slot."""


class StateHold:
    """What one lease holds: its live slot, the checkpoint it starts from, and those it is about to write."""

    __slots__ = ("_kind", "_source", "_start", "live", "written")

    def __init__(self, kind: StateKind, matched: list[Node], start: int) -> None:
        if not kind.free_live:
            raise EngineError(f"all {kind.num_live} live state slots are taken")
        self.live = kind.free_live.pop()
        self.written: dict[int, int] = {}
        """Position -> private slot."""
        self._kind = kind
        self._start = start
        self._source = matched[-1] if matched else None
        if self._source and kind.shelf.of(self._source) == NOTHING:
            if kind.shelf.host is None or not kind.shelf.has(self._source):
                raise EngineError(
                    f"can't start from node {self._source.serial}: device and host have none of its states"
                )
            kind.shelf.host.load(self._source, self.live)
            self._source = None
        if self._source:
            kind.shelf.lock(self._source)

    def use(self, start: int, end: int, keeps: bool) -> StateUse:
        """For the segment of positions start .. end - 1; takes slots for its checkpoints if the lease `keeps` any."""
        if start == 0:
            source = ZERO_STATE
        elif start == self._start and self._source:
            source = StateSlot(self._kind.shelf.of(self._source))
        else:
            source = StateSlot(self.live)
        interval = self._kind.interval
        positions = range(start // interval * interval + interval, end + 1, interval) if keeps else range(0)
        return StateUse(source, StateSlot(self.live), self._take(positions))

    def publish(self, position: int, node: Node) -> None:
        """The state at `position`, if it was written, belongs to the node now."""
        slot = self.written.pop(position, None)
        if slot is not None:
            self._kind.shelf.attach(node, slot)

    def unpin(self) -> None:
        """The step that reads the source is done."""
        if self._source:
            self._kind.shelf.unlock(self._source)
            self._source = None

    def release(self) -> None:
        self.unpin()
        self._kind.shelf.give_back(reversed(self.written.values()))
        self._kind.free_live.append(self.live)
        self.written = {}

    @property
    def pinned(self) -> Node | None:
        """For `check`."""
        return self._source

    def _take(self, positions: range) -> tuple[tuple[int, StateSlot], ...]:
        """Slots for the last of the positions, if there isn't room for all: the deepest are hit most."""
        kept = positions[max(0, len(positions) - self._kind.shelf.room) :]
        slots = self._kind.shelf.take(len(kept)) or []
        self._kind.skipped += len(positions) - len(kept)
        self.written.update(zip(kept, slots, strict=True))
        return tuple((position, StateSlot(slot)) for position, slot in zip(kept, slots, strict=True))
