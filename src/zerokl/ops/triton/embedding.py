"""Rows of a weight as float32, by id: the residual stream begins.

An id below 0 names a token that the step before has drawn: -1 - its place there.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from zerokl.ops.triton.numbers import EARLY, begin


@triton.jit
def embedding_rows(weight, ids, y, E: tl.constexpr, BLOCK: tl.constexpr):
    begin()
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    token = tl.maximum(tl.load(ids + row), 0).to(tl.int64)  # a padding row's position is -1
    values = tl.load(weight + token * E + column, mask=column < E, other=0.0)
    tl.store(y + row * E + column, values.to(tl.float32), mask=column < E)


@triton.jit
def resolve_ids(ids, drawn, resolved, num_ids, BLOCK: tl.constexpr):
    begin()
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    token = tl.load(ids + place, mask=place < num_ids, other=0)
    before = tl.load(drawn - 1 - token, mask=token < 0, other=0)
    tl.store(resolved + place, tl.where(token < 0, before, token), mask=place < num_ids)


def embedding(weight: Any, ids: Any) -> Any:
    """[N, K] bf16, [T] -> [T, K] f32."""
    width = weight.values.shape[1]
    y = torch.empty((len(ids), width), dtype=torch.float32, device=ids.device)
    block = min(2048, triton.next_power_of_2(width))
    embedding_rows[(len(ids), triton.cdiv(width, block))](weight.values, ids, y, width, block, num_warps=4, **EARLY)
    return y


def resolve(ids: Any, drawn: Any) -> Any:
    """`ids` with the pending ones replaced from `drawn`, the ids that the step before drew."""
    resolved = torch.empty_like(ids)
    resolve_ids[(triton.cdiv(len(ids), 1024),)](ids, drawn, resolved, len(ids), 1024, num_warps=4, **EARLY)
    return resolved


@triton.jit
def copy_rows(table, source, target, table_stride, width, BLOCK: tl.constexpr):
    begin()
    place = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(table + place * table_stride).to(tl.int64)
    values = tl.load(source + row * width + column, mask=column < width)
    tl.store(target + place * width + column, values, mask=column < width)


def gather(table: Any, source: Any, target: Any) -> None:
    """target[i] = source[table[i, 0]]."""
    width, block = source.shape[1], 2048
    copy_rows[(len(table), triton.cdiv(width, block))](
        table, source, target, table.stride(0), width, block, num_warps=4, **EARLY
    )
