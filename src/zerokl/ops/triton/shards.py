"""Weights of which this GPU has a part: its own chains or rows, and the exchange with the other ranks.

A part is computed straight into the memory that the others read; `exchange.py` has order and roundings.
"""

from __future__ import annotations

from typing import Any

import torch

from zerokl.ops.shards import InputShard, VocabularyShard
from zerokl.ops.triton.chain import empty
from zerokl.ops.triton.experts import fill as fill_experts
from zerokl.ops.triton.ways import fill, narrow


def summed(x: Any, shard: InputShard, bias: Any, residual: Any, wide: bool) -> Any:
    """`linear` of a weight whose columns the ranks share; a residual is added to in its place, and returned."""
    columns = shard.matrix.shape[0]
    x, group, shape = narrow(x), shard.group, (len(x), columns)
    part = group.place(shape)
    if not shard.is_empty:
        fill(x, shard.matrix, part, wide=True)
    added = residual is not None
    y = residual if added else empty(x, columns, torch.float32 if wide else None)
    return group.fold(shape, shard.count, bias, y, added)


def experts_of_ranks(x: Any, gate_up: Any, shard: InputShard, chosen: Any, weights: Any, residual: Any) -> Any:
    """`experts` of which each rank has a part of the width: a token's chain over its experts is within each part."""
    group, shape = shard.group, (len(x), x.shape[1])
    part = group.place(shape)
    if not shard.is_empty:
        fill_experts(part, x, gate_up, shard.matrix, chosen, weights, False)
    added = residual is not None
    y = residual if added else empty(x, x.shape[1], torch.float32)
    return group.fold(shape, shard.count, None, y, added)


def logits_of_ranks(x: Any, shard: VocabularyShard) -> Any:
    """[T, N] f32 on rank 0; the others get their own columns."""
    x = narrow(x)
    part = shard.group.place((len(x), shard.matrix.shape[0]))
    if part.shape[1]:  # a small vocabulary has fewer blocks than there are ranks
        fill(x, shard.matrix, part, wide=True)
    return shard.group.joined(len(x), shard.bounds)


def rows_of_ranks(shard: VocabularyShard, ids: Any) -> Any:
    """[T, K] f32 of ids [T]: each row from the rank that has it."""
    return shard.group.rows(shard.matrix.values, ids, shard.bounds)  # type: ignore[union-attr]
