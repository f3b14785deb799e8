"""Rows of a weight, by id. An id below 0 names a token that the step before has drawn: -1 - its place there."""

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
    token = tl.load(ids + row).to(tl.int64)
    values = tl.load(weight + token * E + column, mask=column < E, other=0.0)
    tl.store(y + row * E + column, values, mask=column < E)


@triton.jit
def resolve_ids(ids, drawn, resolved, num_ids, BLOCK: tl.constexpr):
    begin()
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    token = tl.load(ids + place, mask=place < num_ids, other=0)
    before = tl.load(drawn - 1 - token, mask=token < 0, other=0)
    tl.store(resolved + place, tl.where(token < 0, before, token), mask=place < num_ids)


def embedding(weight: Any, ids: Any) -> Any:
    """[N, K], [T] -> [T, K]."""
    width = weight.values.shape[1]
    y = torch.empty((len(ids), width), dtype=weight.values.dtype, device=ids.device)
    block = min(2048, triton.next_power_of_2(width))
    embedding_rows[(len(ids), triton.cdiv(width, block))](weight.values, ids, y, width, block, num_warps=4, **EARLY)
    return y


def resolve(ids: Any, drawn: Any) -> Any:
    """`ids` with the pending ones replaced from `drawn`, the ids that the step before drew."""
    resolved = torch.empty_like(ids)
    resolve_ids[(triton.cdiv(len(ids), 1024),)](ids, drawn, resolved, len(ids), 1024, num_warps=4, **EARLY)
    return resolved
