"""Which group the ranks of a device make. Only here is it decided whether torch is needed."""

from __future__ import annotations

from typing import Any

from zerokl.parallel.host_group import HostGroup


def meeting_store(device: str, ranks: int, host: str = "127.0.0.1") -> Any:
    """Where ranks on GPUs meet first, opened by rank 0, whose machine the others call `host`; None on the CPU."""
    if device == "cpu":
        return None
    from zerokl.parallel import peers

    return peers.open_store(ranks, host)


def group_of(device: str, host: HostGroup, store: Any) -> Any:
    """The group that exchanges sums: the host's on the CPU, else one of GPUs. `store`: rank 0's, or its address."""
    if device == "cpu":
        return host
    from zerokl.parallel.peers import PeerGroup

    return PeerGroup(host.rank, host.size, store, local_rank=host.local_rank, local_size=host.local_size)
