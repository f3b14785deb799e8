"""Sums in leaves for many rows, on Hopper: one warp loads, two groups of four warps multiply, and leaves meet in them.

A tile is 64 rows for each group by 128 columns. A group keeps three accumulators in registers: the leaf that it is at,
the leaf or the pair before, and the sum of the first four of eight leaves. The pair that waits for the next pair lies
in shared memory. The loading warp never stops at a leaf's end, and while one group adds, the other multiplies.

Maths, rounding, order, bits: those of `leaves.py`, for 2, 4 or 8 equal leaves. Free: stages, band (admit.py)
"""

from __future__ import annotations

from typing import Any

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from zerokl.ops.choices import LeafGroups
from zerokl.ops.triton.numbers import EXACT
from zerokl.ops.triton.persistent import processors

GROUPS, GROUP_ROWS, COLUMNS, DEPTH = 2, 64, 128, 64
LOADING, MULTIPLYING = 32, 232
"""Registers of a thread."""


@gluon.jit
def corner(tile, tiles_down, tiles_across, BAND: gl.constexpr):
    """(row, column) of a tile, in tiles: bands of BAND rows, column by column."""
    band = tile // (BAND * tiles_across)
    height = min(tiles_down - band * BAND, BAND)
    place = tile % (BAND * tiles_across)
    return band * BAND + place % height, place // height


@gluon.jit
def load_tiles(x, w, shared, sizes, STAGES: gl.constexpr, BAND: gl.constexpr, PROGRAMS: gl.constexpr):
    x_ring, w_ring, full, empty = shared
    num_tiles, tiles_down, tiles_across, _, _, steps = sizes
    # Zeros of their own: a loop takes a name that shares its value with another for unchanged (docs/log.md).
    slot, phase = gl.program_id(0) * 0, gl.program_id(0) * 0
    for tile in range(gl.program_id(0), num_tiles, PROGRAMS):
        down, across = corner(tile, tiles_down, tiles_across, BAND)
        for k in range(0, steps * 64, 64):
            mbarrier.wait(empty.index(slot), phase ^ 1)
            mbarrier.expect(full.index(slot), (2 * 64 + 128) * 64 * 2)
            for group in gl.static_range(2):
                at = (down * 2 + group) * 64
                tma.async_copy_global_to_shared(x, [at, k], full.index(slot), x_ring.index(slot * 2 + group))
            tma.async_copy_global_to_shared(w, [across * 128, k], full.index(slot), w_ring.index(slot))
            slot += 1
            phase = gl.where(slot == STAGES, phase ^ 1, phase)
            slot = gl.where(slot == STAGES, 0, slot)


@gluon.jit
def one_leaf(shared, slot, phase, steps, GROUP: gl.constexpr, STAGES: gl.constexpr, layout: gl.constexpr):
    x_ring, w_ring, full, empty = shared
    acc = gl.zeros([64, 128], gl.float32, layout=layout)
    for step in range(steps):
        mbarrier.wait(full.index(slot), phase)
        rows, columns = x_ring.index(slot * 2 + GROUP), w_ring.index(slot).permute((1, 0))
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
def tree(
    shared, parked, slot, phase, steps, LEAVES: gl.constexpr, GROUP: gl.constexpr, STAGES: gl.constexpr,
    layout: gl.constexpr,
):  # fmt: skip
    """Leaves of so many steps each. Loops, not written out: the compiler has no registers for eight chains."""
    four = gl.zeros([64, 128], gl.float32, layout=layout)
    two = gl.zeros([64, 128], gl.float32, layout=layout)
    for i in range(LEAVES // 4 if LEAVES > 4 else 1):
        for j in range(2 if LEAVES > 2 else 1):
            two, slot, phase = one_leaf(shared, slot, phase, steps, GROUP, STAGES, layout)
            more, slot, phase = one_leaf(shared, slot, phase, steps, GROUP, STAGES, layout)
            two += more
            if LEAVES > 2:
                if j == 0:
                    parked.store(two)
                else:
                    two += parked.load(layout)
        four = gl.where(i == 0, two, four + two)
    return four, slot, phase


@gluon.jit
def multiply(
    shared, parked, y, sizes, LEAVES: gl.constexpr, GROUP: gl.constexpr, STAGES: gl.constexpr, BAND: gl.constexpr,
    PROGRAMS: gl.constexpr, ADDED: gl.constexpr,
):  # fmt: skip
    """One group's rows of every tile of this program."""
    num_tiles, tiles_down, tiles_across, num_rows, N, steps = sizes
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 128, 16])
    lane = gl.arange(0, 64, layout=gl.SliceLayout(1, layout))
    column = gl.arange(0, 128, layout=gl.SliceLayout(0, layout))
    slot, phase = gl.program_id(0) * 0, gl.program_id(0) * 0
    for tile in range(gl.program_id(0), num_tiles, PROGRAMS):
        down, across = corner(tile, tiles_down, tiles_across, BAND)
        total, slot, phase = tree(shared, parked, slot, phase, steps // LEAVES, LEAVES, GROUP, STAGES, layout)
        row = (down * 2 + GROUP) * 64 + lane
        at = (y + (row.to(gl.int64) * N + across * 128))[:, None] + column[None, :]
        there = (row < num_rows)[:, None]
        if ADDED:
            total += gl.load(at, mask=there, other=0.0)
        gl.store(at, total.to(y.dtype.element_ty), mask=there)


@gluon.jit(do_not_specialize=["num_rows"])
def leaf_groups(
    x, w, y, num_rows, N, K,
    LEAVES: gl.constexpr, STAGES: gl.constexpr, BAND: gl.constexpr, PROGRAMS: gl.constexpr, ADDED: gl.constexpr,
    LOADING: gl.constexpr, MULTIPLYING: gl.constexpr,
):  # fmt: skip
    """As many programs as processors."""
    gdc_launch_dependents()
    gdc_wait()
    tiles_down, tiles_across = gl.cdiv(num_rows, 128), gl.cdiv(N, 128)
    x_ring = gl.allocate_shared_memory(gl.bfloat16, [STAGES * 2, 64, 64], x.layout)
    w_ring = gl.allocate_shared_memory(gl.bfloat16, [STAGES, 128, 64], w.layout)
    spare: gl.constexpr = gl.SwizzledSharedLayout(4, 1, 8, [1, 0])
    parked = gl.allocate_shared_memory(gl.float32, [2, 64 if LEAVES > 2 else 1, 128], spare)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=2)
    shared = (x_ring, w_ring, full, empty)
    sizes = (tiles_down * tiles_across, tiles_down, tiles_across, num_rows, N, K // 64)
    gl.warp_specialize(
        [
            (multiply, (shared, parked.index(0), y, sizes, LEAVES, 0, STAGES, BAND, PROGRAMS, ADDED)),
            (multiply, (shared, parked.index(1), y, sizes, LEAVES, 1, STAGES, BAND, PROGRAMS, ADDED)),
            (load_tiles, (x, w, shared, sizes, STAGES, BAND, PROGRAMS)),
        ],
        [4, 1], [MULTIPLYING, LOADING],
    )  # fmt: skip


def run_groups(x: Any, w: Any, y: Any, ends: tuple[int, ...], way: LeafGroups, added: bool = False) -> Any:
    """Fill y, or add to it. Leaves are equal and whole steps of 64, columns whole tiles of 128."""
    (rows, depth), columns = x.shape, y.shape[1]
    tiles = triton.cdiv(rows, GROUPS * GROUP_ROWS) * (columns // COLUMNS)
    programs = min(tiles, processors(str(x.device)))
    leaf_groups[(programs,)](
        blocks(x, GROUP_ROWS), blocks(w, COLUMNS), y, rows, columns, depth, len(ends),
        way.stages, way.band, programs, added, LOADING, MULTIPLYING, num_warps=4, **EXACT,
    )  # fmt: skip
    return y


def blocks(matrix: Any, rows: int, columns: int = DEPTH) -> TensorDescriptor:
    return TensorDescriptor.from_tensor(matrix, [rows, columns], gl.NVMMASharedLayout(128, 16, 2))
