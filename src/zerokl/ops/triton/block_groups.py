"""Sums that are scaled every 128 k, for many rows, on Hopper: one warp loads, three groups of four warps multiply.

No library makes these sums. A group keeps two accumulators in registers: the block that it is at, and what the blocks
before it add up to. While one group scales and adds, the others multiply. A gated tile has 64 columns of gate and the
same of up beside each other, because the numbers are unpacked in that order.

Maths, rounding, order, bits: those of `chain.py`, by blocks. Free: groups, stages, band (admit.py)
"""

from __future__ import annotations

from typing import Any

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from zerokl.ops.choices import BlockGroups
from zerokl.ops.triton.leaf_groups import COLUMNS, GROUP_ROWS, corner
from zerokl.ops.triton.numbers import EXACT
from zerokl.ops.triton.one_row import gated
from zerokl.ops.triton.persistent import processors

LOADING, MULTIPLYING = 32, {2: 232, 3: 160}
"""Registers of a thread; of those that multiply, by groups."""


@gluon.jit
def ask_for_residual(y, first_row, first_column, num_rows, N, ROWS: gl.constexpr):
    """Into the L2 cache, ROWS by 128 numbers: 32 lines at a time."""
    lane = gl.arange(0, 32, layout=gl.BlockedLayout([1], [32], [1], [0]))
    for i in range(ROWS // 8):
        row = first_row + i * 8 + lane // 4
        row = gl.where(row < num_rows, row, num_rows - 1)
        at = (y + (row.to(gl.int64) * N + first_column) + lane % 4 * 32).to(gl.int64)
        gl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [at], dtype=gl.int32, is_pure=False, pack=1
        )


@gluon.jit
def load_tiles(
    x, w, y, shared, sizes, GROUPS: gl.constexpr, PASSES: gl.constexpr, DEPTH: gl.constexpr, STAGES: gl.constexpr,
    BAND: gl.constexpr, PROGRAMS: gl.constexpr, ADDED: gl.constexpr,
):  # fmt: skip
    x_ring, w_ring, full, empty = shared
    num_tiles, tiles_down, tiles_across, num_rows, N, K = sizes
    slot, phase = gl.program_id(0) * 0, gl.program_id(0) * 0
    for tile in range(gl.program_id(0), num_tiles, PROGRAMS):
        down, across = corner(tile, tiles_down, tiles_across, BAND)
        if ADDED:
            for number in gl.static_range(PASSES):
                ask_for_residual(y, down * GROUPS * 64, (across * PASSES + number) * 128, num_rows, N, GROUPS * 64)
        for k in range(0, K, DEPTH):
            mbarrier.wait(empty.index(slot), phase ^ 1)
            mbarrier.expect(full.index(slot), (GROUPS * 64 + PASSES * 128) * DEPTH * 2)
            for group in gl.static_range(GROUPS):
                at = (down * GROUPS + group) * 64
                tma.async_copy_global_to_shared(x, [at, k], full.index(slot), x_ring.index(slot * GROUPS + group))
            for number in gl.static_range(PASSES):
                at = (across * PASSES + number) * 128
                tma.async_copy_global_to_shared(w, [at, k], full.index(slot), w_ring.index(slot * PASSES + number))
            slot, phase = further(slot, phase, 1, STAGES)


@gluon.jit
def further(slot, phase, steps: gl.constexpr, STAGES: gl.constexpr):
    slot += steps
    return gl.where(slot >= STAGES, slot - STAGES, slot), gl.where(slot >= STAGES, phase ^ 1, phase)


@gluon.jit
def one_block(
    shared, slot, phase, NUMBER: gl.constexpr, GROUP: gl.constexpr, GROUPS: gl.constexpr, PASSES: gl.constexpr,
    DEPTH: gl.constexpr, STAGES: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """The chain of 128 k from +0, of 128 columns; the last pass gives places back."""
    x_ring, w_ring, full, empty = shared
    part = gl.zeros([64, 128], gl.float32, layout=layout)
    for i in gl.static_range(128 // DEPTH):
        place, turn = further(slot, phase, i, STAGES)
        if NUMBER == 0:
            mbarrier.wait(full.index(place), turn)
        rows, columns = x_ring.index(place * GROUPS + GROUP), w_ring.index(place * PASSES + NUMBER).permute((1, 0))
        part = warpgroup_mma(rows, columns, part, use_acc=i > 0, is_async=True)
        if (i > 0) & (NUMBER == PASSES - 1):
            before, _ = further(slot, phase, i - 1, STAGES)
            part = warpgroup_mma_wait(1, deps=[part])
            mbarrier.arrive(empty.index(before), count=1)
    part = warpgroup_mma_wait(0, deps=[part])
    if NUMBER == PASSES - 1:
        last, _ = further(slot, phase, 128 // DEPTH - 1, STAGES)
        mbarrier.arrive(empty.index(last), count=1)
    return part


@gluon.jit
def added_up(total, part, by):
    by, part = gl.broadcast(gl.expand_dims(gl.expand_dims(by, 0), 2), part.reshape([64, 8, 16]))
    return gl.fma(by, part, total)


@gluon.jit
def multiply(
    shared, scales, y, sizes, GROUP: gl.constexpr, GROUPS: gl.constexpr, PASSES: gl.constexpr, DEPTH: gl.constexpr,
    STAGES: gl.constexpr, BAND: gl.constexpr, PROGRAMS: gl.constexpr, GATED: gl.constexpr, ADDED: gl.constexpr,
):  # fmt: skip
    """One group's rows of every tile of this program."""
    num_tiles, tiles_down, tiles_across, num_rows, N, K = sizes
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 128, 16])
    zeros = gl.zeros([64, 128], gl.float32, layout=layout).reshape([64, 8, 16])
    by_panel: gl.constexpr = zeros.type.layout
    panel = gl.arange(0, 8, layout=gl.SliceLayout(0, gl.SliceLayout(2, by_panel)))
    slot, phase = gl.program_id(0) * 0, gl.program_id(0) * 0
    for tile in range(gl.program_id(0), num_tiles, PROGRAMS):
        down, across = corner(tile, tiles_down, tiles_across, BAND)
        if PASSES == 2:
            first, second = (across * 8, N // 16 + across * 8) if GATED else (across * 16, across * 16 + 8)
            at_first, at_second = scales + (first + panel) * (K // 128), scales + (second + panel) * (K // 128)
        else:
            if GATED:
                own = gl.where(panel < 4, across * 4 + panel, N // 16 + across * 4 + panel - 4)
            else:
                own = across * 8 + panel
            at_first = scales + own * (K // 128)
            at_second = at_first
        total, more = zeros, zeros
        for _ in range(K // 128):
            by = gl.load(at_first)
            part = one_block(shared, slot, phase, 0, GROUP, GROUPS, PASSES, DEPTH, STAGES, layout)
            total = added_up(total, part, by)
            if PASSES == 2:
                by = gl.load(at_second)
                part = one_block(shared, slot, phase, 1, GROUP, GROUPS, PASSES, DEPTH, STAGES, layout)
                more = added_up(more, part, by)
                at_second += 1
            at_first += 1
            slot, phase = further(slot, phase, 128 // DEPTH, STAGES)
        row = (down * GROUPS + GROUP) * 64
        if GATED and PASSES == 2:
            total = gated(total, more)
            store(
                y,
                gl.convert_layout(total.reshape([64, 128]), layout, assert_trivial=True),
                row,
                across * 128,
                num_rows,
                N,
                ADDED,
            )
        elif GATED:
            gate, up = gl.split(total.reshape([64, 2, 64]).permute((0, 2, 1)))
            store(y, gated(gate, up), row, across * 64, num_rows, N, ADDED)
        else:
            total = gl.convert_layout(total.reshape([64, 128]), layout, assert_trivial=True)
            store(y, total, row, across * PASSES * 128, num_rows, N, ADDED)
            if PASSES == 2:
                more = gl.convert_layout(more.reshape([64, 128]), layout, assert_trivial=True)
                store(y, more, row, across * 256 + 128, num_rows, N, ADDED)


@gluon.jit
def store(y, total, first_row, first_column, num_rows, N, ADDED: gl.constexpr):
    layout: gl.constexpr = total.type.layout
    row = first_row + gl.arange(0, total.shape[0], layout=gl.SliceLayout(1, layout))
    column = first_column + gl.arange(0, total.shape[1], layout=gl.SliceLayout(0, layout))
    at, there = (y + row.to(gl.int64) * N)[:, None] + column[None, :], (row < num_rows)[:, None]
    if ADDED:
        total += gl.load(at, mask=there, other=0.0)
    gl.store(at, total.to(y.dtype.element_ty), mask=there)


@gluon.jit(do_not_specialize=["num_rows"])
def block_groups(
    x, w, scales, y, num_rows, N, K,
    GROUPS: gl.constexpr, PASSES: gl.constexpr, DEPTH: gl.constexpr, STAGES: gl.constexpr, BAND: gl.constexpr,
    PROGRAMS: gl.constexpr, GATED: gl.constexpr, ADDED: gl.constexpr, LOADING: gl.constexpr, MULTIPLYING: gl.constexpr,
):  # fmt: skip
    """As many programs as processors; N columns of y, twice as many of w if gated."""
    gdc_launch_dependents()
    gdc_wait()
    tiles_down, tiles_across = gl.cdiv(num_rows, 64 * GROUPS), N // (64 * PASSES if GATED else 128 * PASSES)
    num_tiles = tiles_down * tiles_across
    x_ring = gl.allocate_shared_memory(gl.bfloat16, [STAGES * GROUPS, 64, DEPTH], x.layout)
    w_ring = gl.allocate_shared_memory(gl.bfloat16, [STAGES * PASSES, 128, DEPTH], w.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=GROUPS)
    shared = (x_ring, w_ring, full, empty)
    sizes = (num_tiles, tiles_down, tiles_across, num_rows, N, K)
    if GROUPS == 2:
        gl.warp_specialize(
            [
                (multiply, (shared, scales, y, sizes, 0, 2, PASSES, DEPTH, STAGES, BAND, PROGRAMS, GATED, ADDED)),
                (multiply, (shared, scales, y, sizes, 1, 2, PASSES, DEPTH, STAGES, BAND, PROGRAMS, GATED, ADDED)),
                (load_tiles, (x, w, y, shared, sizes, 2, PASSES, DEPTH, STAGES, BAND, PROGRAMS, ADDED)),
            ],
            [4, 1], [MULTIPLYING, LOADING],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (multiply, (shared, scales, y, sizes, 0, 3, PASSES, DEPTH, STAGES, BAND, PROGRAMS, GATED, ADDED)),
                (multiply, (shared, scales, y, sizes, 1, 3, PASSES, DEPTH, STAGES, BAND, PROGRAMS, GATED, ADDED)),
                (multiply, (shared, scales, y, sizes, 2, 3, PASSES, DEPTH, STAGES, BAND, PROGRAMS, GATED, ADDED)),
                (load_tiles, (x, w, y, shared, sizes, 3, PASSES, DEPTH, STAGES, BAND, PROGRAMS, ADDED)),
            ],
            [4, 4, 1], [MULTIPLYING, MULTIPLYING, LOADING],
        )  # fmt: skip


def run_block_groups(x: Any, w: Any, y: Any, scales: Any, way: BlockGroups, added: bool, gated: bool) -> Any:
    """Fill y, or add to it; w's rows by turns of gate and up if gated. Whole tiles of columns, whole blocks of k."""
    (rows, depth), columns = x.shape, y.shape[1]
    groups = 2 if way.passes == 2 else 3
    tiles = triton.cdiv(rows, GROUP_ROWS * groups) * (len(w) // (COLUMNS * way.passes))
    programs = min(tiles, processors(str(x.device)))
    block_groups[(programs,)](
        blocks(x, GROUP_ROWS, way.depth), blocks(w, COLUMNS, way.depth), scales, y, rows, columns, depth, groups,
        way.passes, way.depth, way.stages, way.band, programs, gated, added, LOADING, MULTIPLYING[groups], num_warps=4,
        **EXACT,
    )  # fmt: skip
    return y


def blocks(matrix: Any, rows: int, columns: int) -> TensorDescriptor:
    return TensorDescriptor.from_tensor(matrix, [rows, columns], gl.NVMMASharedLayout(2 * columns, 16, 2))
