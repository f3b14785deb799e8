"""What ranks pay to meet: the ordered sum over GPUs, in one kernel or behind NCCL's all-gather, and NCCL's all-reduce.

    python benchmarks/gpu/exchange.py [--ranks 2] [--width 4096]

Every result is compared, to the bit, with the same tree over all ranks' parts. Times are of a round inside a CUDA
graph of many, the median of several replays, the slowest rank's; a round's part is written by a copy, whose time is
taken off.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from multiprocessing import get_context
from typing import Any

import torch

ROWS = (1, 8, 16, 64, 256, 2048, 8192)
ROUNDS = 32


def parts_of(ranks: int, rows: int, width: int) -> list[torch.Tensor]:
    return [torch.randn((rows, width), generator=torch.Generator().manual_seed(rank + rows)) for rank in range(ranks)]


def tree(parts: list[torch.Tensor]) -> torch.Tensor:
    while len(parts) > 1:
        parts = [parts[i] + parts[i + 1] for i in range(0, len(parts), 2)]
    return parts[0]


def seconds(run: Any, stream: Any) -> float:
    """Of one round."""
    with torch.cuda.stream(stream):
        run()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(capture_error_mode="thread_local")
        run()
        graph.capture_end()
        graph.replay()
        times = []
        for _ in range(7):
            torch.distributed.barrier()
            stream.synchronize()
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record(stream)
            graph.replay()
            stop.record(stream)
            stream.synchronize()
            times.append(start.elapsed_time(stop) / ROUNDS / 1e3)
    return statistics.median(times)


def measure(rank: int, ranks: int, port: int, width: int) -> None:
    import torch.distributed as dist

    from zerokl.parallel.peers import PeerGroup, open_store

    torch.cuda.set_device(rank)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("nccl", rank=rank, world_size=ranks, device_id=torch.device("cuda", rank))
    stream = torch.cuda.Stream()
    lines: dict[int, dict[str, float]] = {rows: {} for rows in ROWS}
    for way in ("peer", "gather"):
        ports = [open_store(ranks)] if rank == 0 else [None]
        told = [ports[0].port if rank == 0 else 0]
        dist.broadcast_object_list(told, 0)
        group = PeerGroup(rank, ranks, ports[0] if rank == 0 else ("127.0.0.1", told[0]), way)
        group.allocate(max(ROWS) * width, 256)
        for rows in ROWS:
            parts = parts_of(ranks, rows, width)
            own, residual = parts[rank].cuda(), torch.ones((rows, width), device="cuda")

            def rounds(group: Any = group, own: Any = own, residual: Any = residual) -> None:
                group.begin()
                for _ in range(ROUNDS):
                    group.place(tuple(own.shape)).copy_(own)
                    group.fold(tuple(own.shape), ranks, None, residual, False)

            lines[rows][way] = seconds(rounds, stream)
            expected = tree(parts)
            if not torch.equal(residual.cpu(), expected):
                raise SystemExit(f"{way}: {rows} rows have other bits")
    for rows in ROWS:
        own, given = torch.ones((rows, width), device="cuda"), torch.ones((rows, width), device="cuda")

        def reduce(own: Any = own, given: Any = given) -> None:
            for _ in range(ROUNDS):
                given.copy_(own)
                dist.all_reduce(given)

        def copy(own: Any = own, given: Any = given) -> None:
            for _ in range(ROUNDS):
                given.copy_(own)

        lines[rows]["all_reduce"] = seconds(reduce, stream)
        lines[rows]["copy"] = seconds(copy, stream)
    found: list[Any] = [None] * ranks
    dist.all_gather_object(found, lines)
    if rank == 0:
        for rows in ROWS:
            most = {name: max(one[rows][name] for one in found) * 1e6 for name in lines[rows]}
            times = {name: round(most[name] - most["copy"], 2) for name in ("peer", "gather", "all_reduce")}
            times["peer / all_reduce"] = round(times["peer"] / times["all_reduce"], 3)
            print(json.dumps({"rows": rows, "width": width, "microseconds": times}), flush=True)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--width", type=int, default=4096)
    given = parser.parse_args()
    context = get_context("spawn")
    port = 29517
    ranks = [context.Process(target=measure, args=(r, given.ranks, port, given.width)) for r in range(given.ranks)]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join()
    raise SystemExit(max(abs(one.exitcode or 0) for one in ranks))


if __name__ == "__main__":
    main()
