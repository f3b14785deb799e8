"""Attention on one GPU: tiles, stages, chunks and ways of loading, for single tokens and for long prefills.

    python benchmarks/gpu/attention.py [--seconds 60]

Prints one JSON line per case: microseconds inside a captured graph (with the caches cold: calls rotate over pools of
more than the L2), and TB/s or TFLOP/s. Results are in docs/log.md.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import time
from functools import partial

import numpy as np
import torch

from zerokl import ops
from zerokl.ops.work import LONG_ROWS, SHORT_ROWS, Work, work_lists

kernels = importlib.import_module("zerokl.ops.triton.attention")
groups = importlib.import_module("zerokl.ops.triton.attention_groups")
HEADS, KEY_HEADS, SIZE = 32, 8, 128
Tile = kernels.Tile


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60)
    limit = time.monotonic() + parser.parse_args().seconds
    k, v = (torch.randn(40000, KEY_HEADS, 64, SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    for case in (decode(k, v), prefill(k, v)):
        for line in case:
            print(json.dumps(line), flush=True)
            if time.monotonic() > limit:
                return


def decode(k, v):
    tiles = [
        Tile(16, 4, 3),
        Tile(16, 4, 2),
        Tile(16, 4, 4),
        Tile(16, 2, 3),
        Tile(16, 2, 2),
        Tile(16, 2, 4),
        Tile(16, 1, 3),
    ]
    shapes = [(1, 384), (1, 1024), (1, 8192), (16, 384), (64, 384), (256, 384), (64, 2048)]
    for tile in tiles:
        found = {}
        for batch, length in shapes:
            kernels.SHORT = kernels.MANY_SHORT = tile
            try:
                us = decode_us(k, v, batch, length)
                found[f"{batch}x{length}"] = [round(us, 1), round(batch * length * KEY_HEADS * SIZE * 4 / us / 1e6, 2)]
            except Exception as error:  # noqa: BLE001 - a tile that doesn't fit is a result
                found[f"{batch}x{length}"] = repr(error)[:80]
                break
        yield {"decode": list(tile), "us, TB/s": found}


def decode_us(k, v, batch: int, length: int) -> float:
    pages = -(-length // 64)
    copies = max(2, min(24, 150_000_000 // (batch * length * 4096), len(k) // (batch * pages)))
    calls = []
    for copy in range(copies):
        table = torch.arange(copy * batch * pages, (copy + 1) * batch * pages, dtype=torch.int32, device="cuda")
        starts, counts = np.full(batch, length - 1, np.int32), np.ones(batch, np.int32)
        kv = ops.LayerKV(k, v, ops.Ragged(None, None, None, table.view(batch, pages), 64, work(starts, counts)))
        q = torch.randn(batch, HEADS, SIZE, device="cuda", dtype=torch.bfloat16)
        calls.append(lambda q=q, kv=kv: kernels.attention(q, kv, 0.1))
    return graph_us(calls)


def prefill(k, v):
    length = 8192
    flops = 2 * length * length * HEADS * SIZE
    tiles = [None, Tile(64, 4, 2), Tile(64, 4, 3), Tile(128, 8, 2), Tile(128, 8, 3)]  # None: groups of warps
    serves = groups.serves
    for chunk, tile in itertools.product((512, 1024), tiles):
        kernels.LONG, kernels.CHUNK = tile or kernels.LONG, chunk
        groups.serves = serves if tile is None else never
        try:
            pages = length // 64
            table = torch.randperm(pages, device="cuda")[None].to(torch.int32)
            work_of_step = work(np.zeros(1, np.int32), np.full(1, length, np.int32))
            kv = ops.LayerKV(k, v, ops.Ragged(None, None, None, table, 64, work_of_step))
            q = torch.randn(length, HEADS, SIZE, device="cuda", dtype=torch.bfloat16)
            us = graph_us([lambda q=q, kv=kv: kernels.attention(q, kv, 0.1)] * 3)
            yield {"prefill": tile and list(tile), "chunk": chunk, "us": round(us), "TFLOP/s": round(flops / us / 1e6)}
        except Exception as error:  # noqa: BLE001
            yield {"prefill": tile and list(tile), "chunk": chunk, "error": repr(error)[:80]}
    for name, us in peers(length):
        yield {"prefill": name, "us": round(us), "TFLOP/s": round(flops / us / 1e6)}


def never(q, kv) -> bool:
    return False


def peers(length: int):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v = (torch.randn(1, HEADS, length, SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
        with sdpa_kernel(backend):
            attend = partial(torch.nn.functional.scaled_dot_product_attention, q, k, v, is_causal=True)
            yield backend.name, graph_us([attend] * 3)


def work(starts, counts) -> Work:
    row_starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    group = HEADS // KEY_HEADS
    lists = work_lists(starts, counts, row_starts, group, kernels.CHUNK, LONG_ROWS, 1 << 20)
    sizes = np.zeros(8, np.int32)
    sizes[::4] = len(lists.long), len(lists.short)
    arrays = [torch.from_numpy(array).cuda() for array in (sizes, lists.long, lists.short)]
    parts = (max(1, len(lists.short)), KEY_HEADS, SHORT_ROWS)
    scratch = tuple(torch.empty(shape, device="cuda") for shape in (parts, parts, (*parts, SIZE)))
    short = min(len(lists.short), max(128, len(counts)))
    scratch += (torch.zeros(parts[:2], dtype=torch.int32, device="cuda"),)
    return Work(*arrays, scratch, len(lists.long), short, len(counts))


def graph_us(calls) -> float:
    for call in calls[:2]:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    best = float("inf")
    graph.replay()
    for _ in range(3):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        best = min(best, begin.elapsed_time(end) / 2 / len(calls) * 1000)
    return best


if __name__ == "__main__":
    main()
