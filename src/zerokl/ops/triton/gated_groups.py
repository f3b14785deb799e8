"""A gated chain for many rows, on Hopper: one warp loads, two groups of four warps multiply, each 64 by 128 outputs.

As `persistent.py`, whose tiles wait for their first loads and for the gate's divisions. Here the loading warp goes on
to the next tile meanwhile, and a group begins it as soon as its own outputs are on their way.

Maths, rounding, order: those of `chain.py`, gated. Columns are whole tiles of 128, K whole steps of 64.
"""

from __future__ import annotations

from typing import Any

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from zerokl.ops.choices import GatedGroups
from zerokl.ops.triton.leaf_groups import COLUMNS, GROUP_ROWS, blocks, corner
from zerokl.ops.triton.numbers import EXACT
from zerokl.ops.triton.persistent import processors

GROUPS = 2
LOADING, MULTIPLYING = 40, 232
"""Registers of a thread."""


@gluon.jit
def load_tiles(x, w, shared, sizes, STAGES: gl.constexpr, BAND: gl.constexpr, PROGRAMS: gl.constexpr):
    x_ring, w_ring, full, empty = shared
    num_tiles, tiles_down, tiles_across, N, steps = sizes
    # Zeros of their own: a loop takes a name that shares its value with another for unchanged (docs/log.md).
    slot, phase = gl.program_id(0) * 0, gl.program_id(0) * 0
    for tile in range(gl.program_id(0), num_tiles, PROGRAMS):
        down, across = corner(tile, tiles_down, tiles_across, BAND)
        for k in range(0, steps * 64, 64):
            mbarrier.wait(empty.index(slot), phase ^ 1)
            bar = full.index(slot)
            mbarrier.expect(bar, (2 * 64 + 2 * 128) * 64 * 2)
            for group in gl.static_range(2):
                tma.async_copy_global_to_shared(x, [(down * 2 + group) * 64, k], bar, x_ring.index(slot * 2 + group))
            for half in gl.static_range(2):
                at = [half * N + across * 128, k]
                tma.async_copy_global_to_shared(w, at, bar, w_ring.index(slot * 2 + half))
            slot += 1
            phase = gl.where(slot == STAGES, phase ^ 1, phase)
            slot = gl.where(slot == STAGES, 0, slot)


@gluon.jit
def multiply(
    y, out, shared, sizes, GROUP: gl.constexpr, STAGES: gl.constexpr, BAND: gl.constexpr, PROGRAMS: gl.constexpr
):  # fmt: skip
    """One group's rows of every tile of this program."""
    x_ring, w_ring, full, empty = shared
    num_tiles, tiles_down, tiles_across, _, steps = sizes
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 128, 16])
    slot, phase = gl.program_id(0) * 0, gl.program_id(0) * 0
    for tile in range(gl.program_id(0), num_tiles, PROGRAMS):
        down, across = corner(tile, tiles_down, tiles_across, BAND)
        acc = gl.zeros([64, 128], gl.float32, layout=layout)
        up = gl.zeros([64, 128], gl.float32, layout=layout)
        for step in range(steps):
            mbarrier.wait(full.index(slot), phase)
            rows = x_ring.index(slot * 2 + GROUP)
            acc = warpgroup_mma(rows, w_ring.index(slot * 2).permute((1, 0)), acc, is_async=True)
            up = warpgroup_mma(rows, w_ring.index(slot * 2 + 1).permute((1, 0)), up, is_async=True)
            acc, up = warpgroup_mma_wait(2, deps=[acc, up])
            mbarrier.arrive(empty.index(gl.where(slot == 0, STAGES, slot) - 1), count=1, pred=step > 0)
            slot += 1
            phase = gl.where(slot == STAGES, phase ^ 1, phase)
            slot = gl.where(slot == STAGES, 0, slot)
        acc, up = warpgroup_mma_wait(0, deps=[acc, up])
        mbarrier.arrive(empty.index(gl.where(slot == 0, STAGES, slot) - 1), count=1)
        g, u = acc.to(gl.bfloat16).to(gl.float32), up.to(gl.bfloat16).to(gl.float32)
        ones = gl.full([64, 128], 1.0, gl.float32, layout)
        g = gl.div_rn(g, ones + gl.exp2(g * -1.4426950408889634)) * u
        tma.store_wait(0)
        out.store(g.to(gl.bfloat16))
        fence_async_shared()
        tma.async_copy_shared_to_global(y, [(down * 2 + GROUP) * 64, across * 128], out)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["num_rows"])
def gated_groups(
    x, w, y, num_rows, N, K,
    STAGES: gl.constexpr, BAND: gl.constexpr, PROGRAMS: gl.constexpr, LOADING: gl.constexpr, MULTIPLYING: gl.constexpr,
):  # fmt: skip
    """As many programs as processors."""
    gdc_launch_dependents()
    gdc_wait()
    tiles_down, tiles_across = gl.cdiv(num_rows, 128), gl.cdiv(N, 128)
    x_ring = gl.allocate_shared_memory(gl.bfloat16, [STAGES * 2, 64, 64], x.layout)
    w_ring = gl.allocate_shared_memory(gl.bfloat16, [STAGES * 2, 128, 64], w.layout)
    outs = gl.allocate_shared_memory(gl.bfloat16, [2, 64, 128], y.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=2)
    shared = (x_ring, w_ring, full, empty)
    sizes = (tiles_down * tiles_across, tiles_down, tiles_across, N, K // 64)
    gl.warp_specialize(
        [
            (multiply, (y, outs.index(0), shared, sizes, 0, STAGES, BAND, PROGRAMS)),
            (multiply, (y, outs.index(1), shared, sizes, 1, STAGES, BAND, PROGRAMS)),
            (load_tiles, (x, w, shared, sizes, STAGES, BAND, PROGRAMS)),
        ],
        [4, 1], [MULTIPLYING, LOADING],
    )  # fmt: skip


def run_gated_groups(x: Any, w: Any, y: Any, way: GatedGroups) -> Any:
    """Fill y."""
    (rows, depth), columns = x.shape, y.shape[1]
    tiles = triton.cdiv(rows, GROUP_ROWS * GROUPS) * triton.cdiv(columns, COLUMNS)
    programs = min(tiles, processors(str(x.device)))
    gated_groups[(programs,)](
        blocks(x, GROUP_ROWS), blocks(w, COLUMNS), blocks(y, GROUP_ROWS, COLUMNS), rows, columns, depth,
        way.stages, way.band, programs, LOADING, MULTIPLYING, num_warps=4, **EXACT,
    )  # fmt: skip
    return y
