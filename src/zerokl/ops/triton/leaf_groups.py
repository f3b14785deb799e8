"""Sums in leaves for many rows, on Hopper: one warp loads, groups of four warps multiply, and leaves meet on the chip.

A tile is 64 rows for each group by 128 columns. A group keeps two accumulators in registers: the leaf that it is at,
and the sum that waits for it. What waits for that lies in shared memory, and the sum of the first four of eight leaves
in the L2 cache. The loading warp never stops at a leaf's end, and while one group adds, the others multiply.

Maths, rounding, order, bits: those of `leaves.py`. Free: groups, stages, band (admit.py)
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from zerokl.ops.choices import LeafGroups
from zerokl.ops.triton.numbers import EXACT
from zerokl.ops.triton.persistent import processors

GROUP_ROWS, COLUMNS, DEPTH = 64, 128, 64
LOADING, MULTIPLYING = 24, {2: 232, 3: 160}
"""Registers of a thread; of those that multiply, by groups."""


@gluon.jit
def corner(tile, tiles_down, tiles_across, BAND: gl.constexpr):
    """(row, column) of a tile, in tiles: bands of BAND rows, column by column."""
    band = tile // (BAND * tiles_across)
    height = min(tiles_down - band * BAND, BAND)
    place = tile % (BAND * tiles_across)
    return band * BAND + place % height, place // height


@gluon.jit
def load_tiles(
    x, w, shared, sizes, K, GROUPS: gl.constexpr, STAGES: gl.constexpr, BAND: gl.constexpr, PROGRAMS: gl.constexpr
):
    x_ring, w_ring, full, empty = shared
    num_tiles, tiles_down, tiles_across = sizes
    # Zeros of their own: a loop takes a name that shares its value with another for unchanged (docs/log.md).
    slot, phase = gl.program_id(0) * 0, gl.program_id(0) * 0
    for tile in range(gl.program_id(0), num_tiles, PROGRAMS):
        down, across = corner(tile, tiles_down, tiles_across, BAND)
        for k in range(0, K, 64):
            mbarrier.wait(empty.index(slot), phase ^ 1)
            mbarrier.expect(full.index(slot), (GROUPS * 64 + 128) * 64 * 2)
            for group in gl.static_range(GROUPS):
                at = (down * GROUPS + group) * 64
                tma.async_copy_global_to_shared(x, [at, k], full.index(slot), x_ring.index(slot * GROUPS + group))
            tma.async_copy_global_to_shared(w, [across * 128, k], full.index(slot), w_ring.index(slot))
            slot += 1
            phase = gl.where(slot == STAGES, phase ^ 1, phase)
            slot = gl.where(slot == STAGES, 0, slot)


@gluon.jit
def one_leaf(
    shared, slot, phase, ENDS: gl.constexpr, LEAF: gl.constexpr, GROUP: gl.constexpr, GROUPS: gl.constexpr,
    STAGES: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    x_ring, w_ring, full, empty = shared
    FIRST: gl.constexpr = ENDS[LEAF - 1] if LEAF else 0
    STEPS: gl.constexpr = (ENDS[LEAF] - FIRST) // 64
    acc = gl.zeros([64, 128], gl.float32, layout=layout)
    for step in range(STEPS):
        mbarrier.wait(full.index(slot), phase)
        rows, columns = x_ring.index(slot * GROUPS + GROUP), w_ring.index(slot).permute((1, 0))
        acc = warpgroup_mma(rows, columns, acc, is_async=True)
        acc = warpgroup_mma_wait(1, deps=[acc])
        mbarrier.arrive(empty.index(gl.where(slot == 0, STAGES, slot) - 1), count=1, pred=step > 0)
        slot += 1
        phase = gl.where(slot == STAGES, phase ^ 1, phase)
        slot = gl.where(slot == STAGES, 0, slot)
    acc = warpgroup_mma_wait(0, deps=[acc])
    mbarrier.arrive(empty.index(gl.where(slot == 0, STAGES, slot) - 1), count=1)
    return acc, slot, phase


@gluon.jit
def pair_of_leaves(
    shared, slot, phase, ENDS: gl.constexpr, LEAF: gl.constexpr, LEAVES: gl.constexpr,
    GROUP: gl.constexpr, GROUPS: gl.constexpr, STAGES: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    total, slot, phase = one_leaf(shared, slot, phase, ENDS, LEAF, GROUP, GROUPS, STAGES, layout)
    if LEAF + 1 < LEAVES:
        more, slot, phase = one_leaf(shared, slot, phase, ENDS, LEAF + 1, GROUP, GROUPS, STAGES, layout)
        total += more
    return total, slot, phase


@gluon.jit
def four_leaves(
    shared, parked, slot, phase, ENDS: gl.constexpr, LEAF: gl.constexpr, LEAVES: gl.constexpr,
    GROUP: gl.constexpr, GROUPS: gl.constexpr, STAGES: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    total, slot, phase = pair_of_leaves(shared, slot, phase, ENDS, LEAF, LEAVES, GROUP, GROUPS, STAGES, layout)
    if LEAF + 2 < LEAVES:
        parked.store(total)
        more, slot, phase = pair_of_leaves(shared, slot, phase, ENDS, LEAF + 2, LEAVES, GROUP, GROUPS, STAGES, layout)
        total = parked.load(layout) + more
    return total, slot, phase


@gluon.jit
def multiply(
    shared, parked, y, beside, sizes, ENDS: gl.constexpr, LEAVES: gl.constexpr, GROUP: gl.constexpr,
    GROUPS: gl.constexpr, STAGES: gl.constexpr, BAND: gl.constexpr, PROGRAMS: gl.constexpr, ADDED: gl.constexpr,
):  # fmt: skip
    """One group's rows of every tile of this program."""
    num_tiles, tiles_down, tiles_across, num_rows, N = sizes
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 128, 16])
    lane = gl.arange(0, 64, layout=gl.SliceLayout(1, layout))
    column = gl.arange(0, 128, layout=gl.SliceLayout(0, layout))
    at_beside = beside + (gl.program_id(0) * GROUPS + GROUP) * (64 * 128)
    at_beside += lane[:, None] * 128 + column[None, :]
    slot, phase = gl.program_id(0) * 0, gl.program_id(0) * 0
    for tile in range(gl.program_id(0), num_tiles, PROGRAMS):
        down, across = corner(tile, tiles_down, tiles_across, BAND)
        total, slot, phase = four_leaves(shared, parked, slot, phase, ENDS, 0, LEAVES, GROUP, GROUPS, STAGES, layout)
        if LEAVES > 4:
            gl.store(at_beside, total)
            more, slot, phase = four_leaves(shared, parked, slot, phase, ENDS, 4, LEAVES, GROUP, GROUPS, STAGES, layout)
            total = gl.load(at_beside) + more
        row = (down * GROUPS + GROUP) * 64 + lane
        at = y + row.to(gl.int64)[:, None] * N + (across * 128 + column)[None, :]
        there = (row < num_rows)[:, None]
        if ADDED:
            total += gl.load(at, mask=there, other=0.0)
        gl.store(at, total.to(y.dtype.element_ty), mask=there)


@gluon.jit(do_not_specialize=["num_rows"])
def leaf_groups(
    x, w, y, beside, num_rows, N, K,
    ENDS: gl.constexpr, LEAVES: gl.constexpr, GROUPS: gl.constexpr, STAGES: gl.constexpr, BAND: gl.constexpr,
    PROGRAMS: gl.constexpr, ADDED: gl.constexpr, LOADING: gl.constexpr, MULTIPLYING: gl.constexpr,
):  # fmt: skip
    """As many programs as processors; `beside` [programs, GROUPS, 64, 128] f32."""
    gdc_launch_dependents()
    gdc_wait()
    tiles_down, tiles_across = gl.cdiv(num_rows, 64 * GROUPS), gl.cdiv(N, 128)
    num_tiles = tiles_down * tiles_across
    x_ring = gl.allocate_shared_memory(gl.bfloat16, [STAGES * GROUPS, 64, 64], x.layout)
    w_ring = gl.allocate_shared_memory(gl.bfloat16, [STAGES, 128, 64], w.layout)
    spare: gl.constexpr = gl.SwizzledSharedLayout(4, 1, 8, [1, 0])
    parked = gl.allocate_shared_memory(gl.float32, [GROUPS, 64 if LEAVES > 2 else 1, 128], spare)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=GROUPS)
    shared = (x_ring, w_ring, full, empty)
    sizes = (num_tiles, tiles_down, tiles_across, num_rows, N)
    if GROUPS == 2:
        gl.warp_specialize(
            [
                (multiply, (
                    shared, parked.index(0), y, beside, sizes, ENDS, LEAVES, 0, GROUPS, STAGES, BAND, PROGRAMS, ADDED,
                )),
                (multiply, (
                    shared, parked.index(1), y, beside, sizes, ENDS, LEAVES, 1, GROUPS, STAGES, BAND, PROGRAMS, ADDED,
                )),
                (load_tiles, (x, w, shared, sizes[:3], K, GROUPS, STAGES, BAND, PROGRAMS)),
            ],
            [4, 1], [MULTIPLYING, LOADING],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (multiply, (
                    shared, parked.index(0), y, beside, sizes, ENDS, LEAVES, 0, GROUPS, STAGES, BAND, PROGRAMS, ADDED,
                )),
                (multiply, (
                    shared, parked.index(1), y, beside, sizes, ENDS, LEAVES, 1, GROUPS, STAGES, BAND, PROGRAMS, ADDED,
                )),
                (multiply, (
                    shared, parked.index(2), y, beside, sizes, ENDS, LEAVES, 2, GROUPS, STAGES, BAND, PROGRAMS, ADDED,
                )),
                (load_tiles, (x, w, shared, sizes[:3], K, GROUPS, STAGES, BAND, PROGRAMS)),
            ],
            [4, 4, 1], [MULTIPLYING, MULTIPLYING, LOADING],
        )  # fmt: skip


def run_groups(x: Any, w: Any, y: Any, ends: tuple[int, ...], way: LeafGroups, added: bool = False) -> Any:
    """Fill y, or add to it. Leaves are whole steps of 64, columns whole tiles of 128."""
    (rows, depth), columns = x.shape, y.shape[1]
    programs = min(triton.cdiv(rows, GROUP_ROWS * way.groups) * (columns // COLUMNS), processors(str(x.device)))
    beside = torch.empty((programs, way.groups, GROUP_ROWS, COLUMNS), dtype=torch.float32, device=x.device)
    leaf_groups[(programs,)](
        blocks(x, GROUP_ROWS), blocks(w, COLUMNS), y, beside, rows, columns, depth, ends, len(ends),
        way.groups, way.stages, way.band, programs, added, LOADING, MULTIPLYING[way.groups], num_warps=4, **EXACT,
    )  # fmt: skip
    return y


def blocks(matrix: Any, rows: int) -> TensorDescriptor:
    return TensorDescriptor.from_tensor(matrix, [rows, DEPTH], gl.NVMMASharedLayout(128, 16, 2))
