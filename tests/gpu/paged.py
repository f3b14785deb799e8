"""Sequences in a paged pool on the device, and the work of steps that look at them."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tests.gpu.device import DEVICE, NARROW, normal
from zerokl import ops
from zerokl.ops.work import LONG_ROWS, SHORT_ROWS, Work, work_lists

kernels = importlib.import_module("zerokl.ops.triton.attention")


@dataclass
class Pool:
    """Keys and values of sequences of given lengths, at pages in no order.

    As `rotate_and_store` leaves them: all other slots hold NaN, but the values' in a page that is begun are 0.
    """

    keys: list[Any]
    values: list[Any]
    k: Any
    v: Any
    tables: Any
    """[sequences, width]."""


def pool_of(lengths: list[int], key_heads: int, size: int, seed: int = 0, bend: Any = None) -> Pool:
    """`bend(k, sequence)` changes a sequence's keys, [length, K, D]."""
    pages = [-(-length // 64) for length in lengths]
    order = np.random.default_rng(seed).permutation(sum(pages) + 3).tolist()
    k = torch.full((sum(pages) + 3, key_heads, 64, size), float("nan"), dtype=NARROW, device=DEVICE)
    v = k.clone()
    tables = torch.zeros((len(lengths), max(pages)), dtype=torch.int32)
    keys, values = [], []
    for i, length in enumerate(lengths):
        keys.append(normal(seed * 100 + i, length, key_heads, size))
        if bend:
            keys[-1] = bend(keys[-1], i)
        values.append(normal(seed * 100 + 50 + i, length, key_heads, size))
        for number in range(pages[i]):
            page, part = order.pop(), slice(number * 64, min(length, number * 64 + 64))
            tables[i, number] = page
            k[page, :, : part.stop - part.start] = keys[-1][part].transpose(0, 1)
            v[page, :, : part.stop - part.start] = values[-1][part].transpose(0, 1)
            v[page, :, part.stop - part.start :] = 0
    return Pool(keys, values, k, v, tables)


def attend(
    q: Any,
    pool: Pool,
    segments: list[tuple[int, int, int]],
    max_parts: int = 4096,
    padding: int = 2,
    window: int | None = None,
    softcap: float | None = None,
    bias: tuple[Any, Any] | None = None,
) -> Any:
    """Attention of segments (sequence, start, tokens); `padding` rows and items of each list are garbage."""
    starts, counts = (np.array([one[i] for one in segments], np.int32) for i in (1, 2))
    row_starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    heads, key_heads, size = q.shape[1], pool.k.shape[1], q.shape[2]
    lists = work_lists(starts, counts, row_starts, heads // key_heads, kernels.CHUNK, LONG_ROWS, max_parts, window)
    sizes = np.zeros(8, np.int32)
    sizes[::4] = len(lists.long), len(lists.short)

    def padded(items: np.ndarray) -> Any:
        return torch.from_numpy(np.concatenate((items, np.full((padding, items.shape[1]), -(2**20), np.int32)))).to(
            DEVICE
        )

    parts = (len(lists.short) + 1, key_heads, SHORT_ROWS)
    nan = [torch.full(shape, float("nan"), device=DEVICE) for shape in (parts, parts, (*parts, size))]
    work = Work(
        counts=torch.from_numpy(sizes).to(DEVICE),
        long=padded(lists.long),
        short=padded(lists.short),
        parts=(nan[0], nan[1], nan[2], torch.zeros(parts[:2], dtype=torch.int32, device=DEVICE)),
        long_grid=len(lists.long) + padding,
        short_grid=max(1, len(lists.short) - 1),
        segments=len(counts),
    )
    table = pool.tables[[one[0] for one in segments]].to(DEVICE).contiguous()
    ragged = ops.Ragged(None, None, None, table, 64, work)
    rows = torch.cat((q, torch.full((padding, heads, size), float("nan"), dtype=q.dtype, device=DEVICE)))
    if bias is not None:
        nan = torch.full((padding, *bias[0].shape[1:]), float("nan"), dtype=bias[0].dtype, device=DEVICE)
        bias = torch.cat((bias[0], nan)), bias[1]
    kv = ops.LayerKV(pool.k, pool.v, ragged)
    found = ops.attention(rows, kv, size**-0.5, window=window, softcap=softcap, bias=bias)
    return found[: len(q)].view(len(q), heads, size)


def exact(
    q: Any,
    pool: Pool,
    segments: list[tuple[int, int, int]],
    window: int | None = None,
    softcap: float | None = None,
    bias: tuple[Any, Any] | None = None,
) -> Any:
    """In float64, from the keys as stored."""
    found, first = [], 0
    for sequence, start, count in segments:
        rows = q[first : first + count].double()
        first += count
        group = q.shape[1] // pool.k.shape[1]
        k, v = (x[sequence].double().repeat_interleave(group, 1) for x in (pool.keys, pool.values))
        scores = torch.einsum("thd,khd->htk", rows, k) * q.shape[2] ** -0.5
        if softcap is not None:
            scores = (scores / softcap).tanh() * softcap
        distance = torch.arange(start, start + count, device=q.device)[:, None] - torch.arange(len(k), device=q.device)
        if bias is not None:
            table = bias[0][first - count : first].double() @ bias[1].double()  # [t, h, extent]
            known = (distance >= 0) & (distance < table.shape[2])
            at = torch.where(known, distance, 0)[:, None].expand(-1, table.shape[1], -1)
            scores = scores + torch.where(known[:, None], table.gather(2, at), 0.0).transpose(0, 1)
        hidden = (distance < 0) | (distance >= (window or len(k)))
        scores = scores.masked_fill(hidden[None], -float("inf"))
        found.append(torch.einsum("htk,khd->thd", scores.softmax(-1), v))
    return torch.cat(found)
