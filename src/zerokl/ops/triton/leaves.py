"""A matrix product whose sum over k is cut in leaves: a chain for each, and the balanced tree over them.

Maths       y[t, n] = tree over leaves of (chain over the leaf's k of x[t, k] w[n, k]), + bias[n], + residual[t, n]
Shapes      as in `chain.py`, never gated; ends: where leaves end, the last one at K; 2 to 8 of them
Rounding    fp32 throughout; once, to y's type
Order       each leaf a chain as in `chain.py`, from +0; (0, 1), (2, 3), ..., a missing one passing its sibling through
Same bits   for every T and row position, for every schedule, and for any number of ranks that share the leaves
Free        leaves side by side (`leaf_parts`: few rows, the program that comes last adds), as a batch of the library's,
            or one after the other in one program's registers (`leaf_tiles`: many rows); all that is free in a chain
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

import torch
import triton
import triton.language as tl

from zerokl.errors import ShapeError
from zerokl.ops.choices import LeafTiles, Schedule
from zerokl.ops.triton.chain import empty, run_chain
from zerokl.ops.triton.numbers import EARLY, EXACT, begin
from zerokl.ops.triton.persistent import blocks, processors

MAX_TILES = 1 << 16
BLOCK = 1024
MAX_LEAVES = 8
"""On one GPU: the tree is written out in the kernels."""


@triton.jit(do_not_specialize=["num_rows"])
def leaf_parts(
    x, w, bias, y, parts, arrived, num_rows, N, K,
    ENDS: tl.constexpr, LEAVES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    SWAPPED: tl.constexpr, EVEN: tl.constexpr, BIASED: tl.constexpr, ADDED: tl.constexpr,
):  # fmt: skip
    """One program per tile and leaf; `parts` [LEAVES, T, N], `arrived` [tiles]: zeros between launches."""
    leaf = tl.program_id(2)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    depth = tl.arange(0, DEPTH)
    from_column, from_row = tl.where(column < N, column, 0), tl.where(row < num_rows, row, 0)
    at_w = w + from_column.to(tl.int64)[:, None] * K + depth[None, :]
    at_x = x + from_row.to(tl.int64)[:, None] * K + depth[None, :]
    begin()
    start, stop = leaf * 0, leaf * 0 + ENDS[0]
    for i in tl.static_range(1, LEAVES):
        start = tl.where(leaf == i, ENDS[i - 1], start)
        stop = tl.where(leaf == i, ENDS[i], stop)
    start = tl.multiple_of(start, 16)
    shape: tl.constexpr = [COLUMNS, ROWS] if SWAPPED else [ROWS, COLUMNS]
    acc = tl.zeros(shape, tl.float32)
    for k in tl.range(start, stop, DEPTH):
        if EVEN:
            wt = tl.load(at_w + k, eviction_policy="evict_first")
            xt = tl.load(at_x + k, eviction_policy="evict_last")
        else:
            there = (k + depth)[None, :] < stop
            wt = tl.load(at_w + k, mask=there, other=0.0)
            xt = tl.load(at_x + k, mask=there, other=0.0)
        acc = tl.dot(wt, xt.T, acc) if SWAPPED else tl.dot(xt, wt.T, acc)
    if SWAPPED:
        acc = acc.T
    inside = (row < num_rows)[:, None] & (column < N)[None, :]
    at = row.to(tl.int64)[:, None] * N + column[None, :]
    size = num_rows.to(tl.int64) * N
    tl.store(parts + leaf * size + at, acc, mask=inside)
    tl.debug_barrier()
    counter = arrived + tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    if tl.atomic_add(counter, 1, sem="acq_rel") == LEAVES - 1:
        tl.store(counter, 0)
        tl.debug_barrier()
        total = stored_tree(parts + at, size, inside, LEAVES)
        if BIASED:
            total += tl.load(bias + from_column)[None, :]
        if ADDED:
            total += tl.load(y + at, mask=inside, other=0.0)
        tl.store(y + at, total.to(y.dtype.element_ty), mask=inside)


@triton.jit
def stored(parts, size, inside, LEAF: tl.constexpr):
    return tl.load(parts + LEAF * size, mask=inside, other=0.0, cache_modifier=".cg")


@triton.jit
def stored_pair(parts, size, inside, LEAF: tl.constexpr, LEAVES: tl.constexpr):
    total = stored(parts, size, inside, LEAF)
    if LEAF + 1 < LEAVES:
        total += stored(parts, size, inside, LEAF + 1)
    return total


@triton.jit
def stored_four(parts, size, inside, LEAF: tl.constexpr, LEAVES: tl.constexpr):
    total = stored_pair(parts, size, inside, LEAF, LEAVES)
    if LEAF + 2 < LEAVES:
        total += stored_pair(parts, size, inside, LEAF + 2, LEAVES)
    return total


@triton.jit
def stored_tree(parts, size, inside, LEAVES: tl.constexpr):
    total = stored_four(parts, size, inside, 0, LEAVES)
    if LEAVES > 4:
        total += stored_four(parts, size, inside, 4, LEAVES)
    return total


@triton.jit
def add_parts(parts, bias, y, size, width, LEAVES: tl.constexpr, BIASED: tl.constexpr, ADDED: tl.constexpr,
              BLOCK: tl.constexpr):  # fmt: skip
    """The tree over parts [LEAVES, T, N] that lie there."""
    begin()
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    total = stored_tree(parts + at, size, inside, LEAVES)
    if BIASED:
        total += tl.load(bias + at % width, mask=inside, other=0.0)
    if ADDED:
        total += tl.load(y + at, mask=inside, other=0.0)
    tl.store(y + at, total.to(y.dtype.element_ty), mask=inside)


@triton.jit
def tile_leaf(
    x, w, row, column, ENDS: tl.constexpr, LEAF: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    acc = tl.zeros([ROWS, COLUMNS], tl.float32)
    FIRST: tl.constexpr = ENDS[LEAF - 1] if LEAF else 0
    for k in range(FIRST, ENDS[LEAF], DEPTH):
        acc = tl.dot(x.load([row, k]), w.load([column, k]).T, acc)
    return acc


@triton.jit
def tile_pair(
    x, w, row, column, ENDS: tl.constexpr, LEAF: tl.constexpr, LEAVES: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    total = tile_leaf(x, w, row, column, ENDS, LEAF, ROWS, COLUMNS, DEPTH)
    if LEAF + 1 < LEAVES:
        total += tile_leaf(x, w, row, column, ENDS, LEAF + 1, ROWS, COLUMNS, DEPTH)
    return total


@triton.jit
def tile_four(
    x, w, row, column, at_parked, ENDS: tl.constexpr, LEAF: tl.constexpr, LEAVES: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    total = tile_pair(x, w, row, column, ENDS, LEAF, LEAVES, ROWS, COLUMNS, DEPTH)
    if LEAF + 2 < LEAVES:
        park(at_parked, total)
        more = tile_pair(x, w, row, column, ENDS, LEAF + 2, LEAVES, ROWS, COLUMNS, DEPTH)
        total = tl.load(at_parked, cache_modifier=".cg") + more
    return total


@triton.jit
def park(at, total):
    """Two accumulators fit the registers; a sum of leaves that waits for its sibling lies in the L2 cache."""
    tl.store(at, total)
    tl.debug_barrier()


@triton.jit(do_not_specialize=["num_rows"])
def leaf_tiles(
    x, w, y, parked, num_rows, N,
    ENDS: tl.constexpr, LEAVES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    BAND: tl.constexpr, PROGRAMS: tl.constexpr, ADDED: tl.constexpr,
):  # fmt: skip
    """As many programs as processors, each of which takes tile after tile, as in `gated.py`."""
    begin()
    at_parked = parked + tl.program_id(0) * 2 * ROWS * COLUMNS
    at_parked += tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    tiles_down, tiles_across = tl.cdiv(num_rows, ROWS), tl.cdiv(N, COLUMNS)
    for tile in tl.range(tl.program_id(0), tiles_down * tiles_across, PROGRAMS):
        band = tile // (BAND * tiles_across)
        height = min(tiles_down - band * BAND, BAND)
        place = tile % (BAND * tiles_across)
        row, column = (band * BAND + place % height) * ROWS, place // height * COLUMNS
        total = tile_four(x, w, row, column, at_parked, ENDS, 0, LEAVES, ROWS, COLUMNS, DEPTH)
        if LEAVES > 4:
            beside = at_parked + ROWS * COLUMNS
            park(beside, total)
            more = tile_four(x, w, row, column, at_parked, ENDS, 4, LEAVES, ROWS, COLUMNS, DEPTH)
            total = tl.load(beside, cache_modifier=".cg") + more
        if ADDED:
            total += y.load([row, column])
        y.store([row, column], total.to(y.dtype))


def run_parts(
    x: Any, w: Any, y: Any, ends: tuple[int, ...], schedule: Schedule, bias: Any = None, added: bool = False
) -> Any:
    """Fill y, or add to it: leaves side by side."""
    (rows, depth), columns = x.shape, y.shape[1]
    tiles = triton.cdiv(columns, schedule.columns), triton.cdiv(rows, schedule.rows)
    if tiles[0] * tiles[1] > MAX_TILES:
        raise ShapeError(f"a product of {rows} by {columns} has too many tiles for sums in leaves")
    parts = torch.empty((len(ends), rows, columns), dtype=torch.float32, device=x.device)
    is_even = all((stop - start) % schedule.depth == 0 for start, stop in pairwise((0, *ends)))
    leaf_parts[(*tiles, len(ends))](
        x, w, bias, y, parts, counters(str(x.device)), rows, columns, depth, ends, len(ends),
        schedule.rows, schedule.columns, schedule.depth, schedule.swapped, is_even, bias is not None, added,
        num_warps=schedule.warps, num_stages=schedule.stages, **EXACT,
    )  # fmt: skip
    return y


def run_tiles(x: Any, w: Any, y: Any, ends: tuple[int, ...], way: LeafTiles, added: bool = False) -> Any:
    """Fill y, or add to it: leaf after leaf. Leaves are whole steps of the way's depth."""
    rows, columns = len(x), y.shape[1]
    operands = blocks(x, way.rows, way.depth), blocks(w, way.columns, way.depth), blocks(y, way.rows, way.columns)
    tiles = triton.cdiv(rows, way.rows) * triton.cdiv(columns, way.columns)
    programs = min(tiles, processors(str(x.device)))
    parked = torch.empty((programs, 2, way.rows, way.columns), dtype=torch.float32, device=x.device)
    leaf_tiles[(programs,)](
        *operands, parked, rows, columns, ends, len(ends), way.rows, way.columns, way.depth, way.band, programs, added,
        num_warps=way.warps, num_stages=way.stages, **EXACT,
    )  # fmt: skip
    return y


def run_library(x: Any, w: Any, y: Any, ends: tuple[int, ...], bias: Any = None, added: bool = False) -> Any:
    """Fill y, or add to it: equal leaves as one batch, which the library multiplies into float32."""
    (rows, _), columns, leaves = x.shape, y.shape[1], len(ends)
    batch = x.view(rows, leaves, ends[0]).transpose(0, 1), w.view(columns, leaves, ends[0]).permute(1, 2, 0)
    return fold_leaves(torch.bmm(*batch, out_dtype=torch.float32), y, bias, added)


def fold_leaves(parts: Any, y: Any, bias: Any, added: bool) -> Any:
    """Fill y, or add to it: the tree over parts [leaves, T, N]."""
    leaves, rows, columns = parts.shape
    add_parts[(triton.cdiv(rows * columns, BLOCK),)](
        parts, bias, y, rows * columns, columns, leaves, bias is not None, added, BLOCK, num_warps=4, **EARLY
    )
    return y


@cache
def counters(device: str) -> Any:
    """Zeros between launches, one for each tile of the largest; launches run one after the other, so all share them."""
    return torch.zeros(MAX_TILES, dtype=torch.int32, device=device)


def reference(x: Any, w: Any, y: Any, ends: tuple[int, ...], schedule: Schedule, bias: Any, added: bool) -> Any:
    """What the other ways are compared with: chains by themselves, and torch's additions."""
    parts = [
        run_chain(part, w[:, start:stop].contiguous(), empty(part, y.shape[1], torch.float32), schedule)
        for start, stop in pairwise((0, *ends))
        for part in [x[:, start:stop].contiguous()]
    ]
    return added_up(parts, y, bias, added)


def added_up(parts: list[Any], y: Any, bias: Any, added: bool) -> Any:
    """Fill y, or add to it: the tree by torch's additions."""
    while len(parts) > 1:
        pairs = [parts[i] + parts[i + 1] for i in range(0, len(parts) - 1, 2)]
        parts = pairs + parts[len(pairs) * 2 :]
    total = parts[0] if bias is None else parts[0] + bias
    return y.copy_(total + y if added else total)
