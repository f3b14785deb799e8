"""Which group the ranks of a device make. Only here is it decided whether torch is needed."""

from __future__ import annotations

from typing import Any

from zerokl.parallel.shared import SharedGroup


def meeting_store(device: str, ranks: int) -> Any:
    """Where ranks on GPUs meet first, opened by rank 0; None on the CPU."""
    if device == "cpu":
        return None
    from zerokl.parallel import peers

    return peers.open_store(ranks)


def group_of(device: str, host: SharedGroup, store: Any) -> Any:
    """The group that exchanges sums: the host's on the CPU, else one of GPUs. `store`: rank 0's, or its port."""
    if device == "cpu":
        return host
    from zerokl.parallel.peers import PeerGroup

    return PeerGroup(host.rank, host.size, store)
