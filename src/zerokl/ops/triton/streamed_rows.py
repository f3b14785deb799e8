"""A chain, or a sum in leaves, for up to 64 rows: `streamed.py` with the warpgroup's matrix instruction.

With 64 rows a product still takes as long as its weights take to come, if rows of x don't come too often: every program
reads all of x. So a program takes all the outputs of its tile at once, whatever their number (48, 96 or 192 too: that
is how 132 programs share 6,144, 12,288 or 151,936 of them evenly), and reads x once for them. One warp loads, four
multiply. Leaves end in registers.

    loading       w 0 1 2 .. STAGES - 1 | wait | x 0 1 2 .. |  then place after place, as it gets free
    multiplying                                 | chain of block 0, of block 1, ...

Maths, rounding, order: those of `chain.py`, or with several `ends` of `leaves.py`, for whole steps of K, without bias.
The interpreter doesn't know Gluon, and the reference schedule stands in.
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
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from zerokl.ops.choices import REFERENCE, StreamedRows
from zerokl.ops.triton.chain import run_chain
from zerokl.ops.triton.leaves import reference
from zerokl.ops.triton.numbers import EARLY, INTERPRETED

DEPTH = 64
LOADING = 40
"""Registers of a thread that loads."""


@gluon.jit
def copy_weights(
    w, full, ring, slot, column, k, N, pred,
    ROWS: gl.constexpr, COLUMNS: gl.constexpr, BOX: gl.constexpr, GATED: gl.constexpr,
):  # fmt: skip
    """One step's weights; the place's barrier also counts the rows of x."""
    WIDE: gl.constexpr = 2 if GATED else 1
    mbarrier.expect(full.index(slot), (COLUMNS * WIDE + ROWS) * 128, pred=pred)
    for half in gl.static_range(WIDE):
        for i in gl.static_range(COLUMNS // BOX):
            place = ring.index(slot * WIDE + half).slice(i * BOX, BOX, 0)
            at = [half * N + column + i * BOX, k]
            tma.async_copy_global_to_shared(w, at, full.index(slot), place, pred=pred)


@gluon.jit
def copy_rows(x, full, ring, slot, k, pred, ROWS: gl.constexpr):
    HIGH: gl.constexpr = x.block_shape[0]
    for i in gl.static_range(ROWS // HIGH):
        place = ring.index(slot).slice(i * HIGH, HIGH, 0)
        tma.async_copy_global_to_shared(x, [i * HIGH, k], full.index(slot), place, pred=pred)


@gluon.jit
def load_blocks(
    x, w, shared, sizes,
    ROWS: gl.constexpr, COLUMNS: gl.constexpr, BOX: gl.constexpr, STAGES: gl.constexpr, GATED: gl.constexpr,
):  # fmt: skip
    x_ring, w_ring, full, empty = shared
    N, steps, first, programs, mine = sizes
    total = mine * steps
    for n in gl.static_range(STAGES):
        column = (first + n // steps * programs) * COLUMNS
        copy_weights(w, full, w_ring, n, column, n % steps * 64, N, n < total, ROWS, COLUMNS, BOX, GATED)
    gdc_wait()
    for n in gl.static_range(STAGES):
        copy_rows(x, full, x_ring, n, n % steps * 64, n < total, ROWS)
    # Computed zeros: a loop takes a name that shares its value with another for unchanged (docs/log.md).
    slot, phase = first * 0, first * 0
    for n in range(STAGES, total):
        column, k = (first + n // steps * programs) * COLUMNS, n % steps * 64
        mbarrier.wait(empty.index(slot), phase)
        copy_weights(w, full, w_ring, slot, column, k, N, True, ROWS, COLUMNS, BOX, GATED)
        copy_rows(x, full, x_ring, slot, k, True, ROWS)
        slot += 1
        phase = gl.where(slot == STAGES, phase ^ 1, phase)
        slot = gl.where(slot == STAGES, 0, slot)


@gluon.jit
def one_leaf(
    shared, slot, phase, steps, ROOM: gl.constexpr, STAGES: gl.constexpr, GATED: gl.constexpr, layout: gl.constexpr
):
    """The chain over so many steps, from +0; gated: the second sum is up's, else nobody's."""
    x_ring, w_ring, full, empty = shared
    WIDE: gl.constexpr = 2 if GATED else 1
    acc = gl.zeros([64, ROOM], gl.float32, layout=layout)
    up = gl.zeros([64, ROOM if GATED else 16], gl.float32, layout=layout)
    for step in range(steps):
        mbarrier.wait(full.index(slot), phase)
        rows = x_ring.index(slot)
        acc = warpgroup_mma(rows, w_ring.index(slot * WIDE).permute((1, 0)), acc, is_async=True)
        if GATED:
            up = warpgroup_mma(rows, w_ring.index(slot * WIDE + 1).permute((1, 0)), up, is_async=True)
            acc, up = warpgroup_mma_wait(2, deps=[acc, up])
        else:
            acc = warpgroup_mma_wait(1, deps=[acc])
        mbarrier.arrive(empty.index(gl.where(slot == 0, STAGES, slot) - 1), count=1, pred=step > 0)
        slot += 1
        phase = gl.where(slot == STAGES, phase ^ 1, phase)
        slot = gl.where(slot == STAGES, 0, slot)
    if GATED:
        acc, up = warpgroup_mma_wait(0, deps=[acc, up])
    else:
        acc = warpgroup_mma_wait(0, deps=[acc])
    mbarrier.arrive(empty.index(gl.where(slot == 0, STAGES, slot) - 1), count=1)
    return acc, up, slot, phase


@gluon.jit
def tree(
    shared, slot, phase, steps, LEAVES: gl.constexpr, ROOM: gl.constexpr, STAGES: gl.constexpr, layout: gl.constexpr
):
    """2, 4 or 8 leaves of so many steps. Loops, not written out: the compiler has no registers for eight chains."""
    four = gl.zeros([64, ROOM], gl.float32, layout=layout)
    for i in range(LEAVES // 4 if LEAVES > 4 else 1):
        two = gl.zeros([64, ROOM], gl.float32, layout=layout)
        for j in range(2 if LEAVES > 2 else 1):
            one, _, slot, phase = one_leaf(shared, slot, phase, steps, ROOM, STAGES, False, layout)
            more, _, slot, phase = one_leaf(shared, slot, phase, steps, ROOM, STAGES, False, layout)
            one += more
            two = gl.where(j == 0, one, two + one)
        four = gl.where(i == 0, two, four + two)
    return four, slot, phase


@gluon.jit
def multiply(
    shared, y, num_rows, sizes, LEAVES: gl.constexpr, COLUMNS: gl.constexpr, ROOM: gl.constexpr,
    STAGES: gl.constexpr, GATED: gl.constexpr, ADDED: gl.constexpr, SOON: gl.constexpr,
):  # fmt: skip
    """Every tile of COLUMNS outputs whose number is the program's own modulo the number of programs."""
    N, steps, first, programs, mine = sizes
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, ROOM, 16])
    row = gl.arange(0, 64, layout=gl.SliceLayout(1, layout))
    lane = gl.arange(0, ROOM, layout=gl.SliceLayout(0, layout))
    gdc_wait()
    slot, phase = first * 0, first * 0
    for turn in range(mine):
        column = (first + turn * programs) * COLUMNS
        at = (y + (row.to(gl.int64) * N + column))[:, None] + lane[None, :]
        there = (row < num_rows)[:, None] & (lane < min(COLUMNS, N - column))[None, :]
        if ADDED:
            before = gl.load(at, mask=there, other=0.0)
        if LEAVES > 1:
            total, slot, phase = tree(shared, slot, phase, steps // LEAVES, LEAVES, ROOM, STAGES, layout)
        else:
            total, up, slot, phase = one_leaf(shared, slot, phase, steps, ROOM, STAGES, GATED, layout)
        if not SOON:  # noqa: SIM102 - known when this is compiled; the other is not
            if turn == mine - 1:
                gdc_launch_dependents()
        if GATED:
            g, u = total.to(gl.bfloat16).to(gl.float32), up.to(gl.bfloat16).to(gl.float32)
            ones = gl.full([64, ROOM], 1.0, gl.float32, layout)
            total = gl.div_rn(g, ones + gl.exp2(g * -1.4426950408889634)) * u
        if ADDED:
            total += before
        gl.store(at, total.to(y.dtype.element_ty), mask=there)


@gluon.jit(do_not_specialize=["num_rows"])
def streamed_rows(
    x, w, y, num_rows, N, K,
    LEAVES: gl.constexpr, ROWS: gl.constexpr, COLUMNS: gl.constexpr, BOX: gl.constexpr, ROOM: gl.constexpr,
    STAGES: gl.constexpr, GATED: gl.constexpr, ADDED: gl.constexpr, SOON: gl.constexpr, LOADING: gl.constexpr,
):  # fmt: skip
    """ROOM: the power of two that COLUMNS lie in. What a place has beyond them, or beyond ROWS, nobody writes, and the
    sums with it are nobody's.
    """
    if SOON:
        gdc_launch_dependents()
    WIDE: gl.constexpr = 2 if GATED else 1
    x_ring = gl.allocate_shared_memory(gl.bfloat16, [STAGES, 64, 64], x.layout)
    w_ring = gl.allocate_shared_memory(gl.bfloat16, [STAGES * WIDE, ROOM, 64], w.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
    fence_async_shared()
    first, programs = gl.program_id(0), gl.num_programs(0)
    mine = (gl.cdiv(N, COLUMNS) - first + programs - 1) // programs
    shared = (x_ring, w_ring, full, empty)
    sizes = (N, K // 64, first, programs, mine)
    gl.warp_specialize(
        [
            (multiply, (shared, y, num_rows, sizes, LEAVES, COLUMNS, ROOM, STAGES, GATED, ADDED, SOON)),
            (load_blocks, (x, w, shared, sizes, ROWS, COLUMNS, BOX, STAGES, GATED)),
        ],
        [1], [LOADING],
    )  # fmt: skip


def run_streamed_rows(
    x: Any, w: Any, y: Any, way: StreamedRows, added: bool, gated: bool, ends: tuple[int, ...] = ()
) -> Any:
    """Fill y, or add to it; `w` and `y` as in `run_chain`."""
    if INTERPRETED:
        if len(ends) > 1:
            return reference(x, w, y, ends, REFERENCE, None, added)
        return run_chain(x, w, y, REFERENCE, None, added, gated)
    (rows, depth), columns = x.shape, y.shape[1]
    # Copies beyond the last row are slow: as many rows are copied as there are, 8 at least at a time.
    high, box = max(8, rows & -rows), min(64, way.columns & -way.columns)
    room = triton.next_power_of_2(way.columns)
    streamed_rows[(min(triton.cdiv(columns, way.columns), way.programs),)](
        blocks(x, high), blocks(w, box), y, rows, columns, depth, max(1, len(ends)),
        triton.cdiv(rows, high) * high, way.columns, box, room, way.stages, gated, added, way.soon, LOADING,
        num_warps=4, maxnreg=128 if room < 256 else 168, **EARLY,
    )  # fmt: skip
    return y


def blocks(matrix: Any, rows: int) -> TensorDescriptor:
    return TensorDescriptor.from_tensor(matrix, [rows, DEPTH], gl.NVMMASharedLayout(128, 16, 2))
