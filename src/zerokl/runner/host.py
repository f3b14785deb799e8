"""The host tier on the CPU: a second set of pools, and the copies that a plan lists.

On the CPU both tiers are the same memory, so this saves nothing there but tests everything: a place is copied in all
layers of its kind, byte for byte, in the order of the list.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from zerokl.errors import EngineError
from zerokl.models import Model
from zerokl.runner.kv import KvPools
from zerokl.runner.state import StatePools
from zerokl.types import Copy, Pools


class HostPools:
    """Copies of pages and of states between a device's pools and this tier's own."""

    def __init__(
        self, model: Model, host: Pools, device: KvPools, states: StatePools | None, *, fill: float | None = None
    ) -> None:
        own = KvPools(model, host.num_pages, host.page_size, host.windows, fill=fill)
        own_states = StatePools(model.memory, host.states, fill=fill) if host.states else None
        self._windows = [pool.window for pool in host.windows]
        self._keys = [(kind[0], (slab, own.slabs[kind])) for kind, slab in device.slabs.items()]
        self._states = list(pairs_of(states, own_states)) if states and own_states else []

    def run(self, copies: Iterable[Copy]) -> None:
        """Does the copies in order. Raises EngineError for one of a kind that isn't there."""
        for copy in copies:
            for device, host in self._arrays(copy):
                if copy.to_host:
                    host[copy.target] = device[copy.source]
                else:
                    device[copy.target] = host[copy.source]

    def _arrays(self, copy: Copy) -> list[Sequence[np.ndarray]]:
        """(device, host) of every layer that has this kind."""
        if copy.kind == "state":
            found = self._states
        else:
            window = self._windows[copy.index] if copy.kind == "sliding" else None
            found = [pair for one, pair in self._keys if one == window]
        if not found and copy.kind != "full":
            raise EngineError(f"there is nothing to copy for {copy}")
        return found


def pairs_of(device: StatePools, host: StatePools) -> Iterator[Sequence[np.ndarray]]:
    """(device, host) of every state; what recurrent layers keep of an unfinished chunk is never at a checkpoint."""
    for layer, other in zip(device.arrays, host.arrays, strict=True):
        for arrays, copies in zip(layer, other, strict=True):
            yield arrays.pool, copies.pool
