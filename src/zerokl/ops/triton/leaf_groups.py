"""Sums in leaves for many rows, on Hopper: one warp loads, two groups of four warps multiply, and leaves meet in them.

A tile is 64 rows for each group by 128 columns. The matrix unit does not wait where a leaf ends: the next leaf's first
steps are under way before the last one's sums are put where they wait. For that a group has three sets of registers:

    first   leaves 0, 2, 4, 6
    pair    leaves 1, 3, 5, 7, and each time the sum of both; behind a tile what it is added to, asked for a leaf ahead
    total   the pair before; the tile's sum

The sum of the first four of eight leaves lies in shared memory. The loading warp never stops.

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
def ask(shared, acc, slot, phase, more, GROUP: gl.constexpr):
    """A step of a leaf, its first or one more: under way."""
    x_ring, w_ring, full, _ = shared
    mbarrier.wait(full.index(slot), phase)
    rows, columns = x_ring.index(slot * 2 + GROUP), w_ring.index(slot).permute((1, 0))
    return warpgroup_mma(rows, columns, acc, use_acc=more, is_async=True)


@gluon.jit
def advance(slot, phase, STAGES: gl.constexpr):
    slot += 1
    return gl.where(slot == STAGES, 0, slot), gl.where(slot == STAGES, phase ^ 1, phase)


@gluon.jit
def free_before(shared, slot, STAGES: gl.constexpr):
    mbarrier.arrive(shared[3].index(gl.where(slot == 0, STAGES, slot) - 1), count=1)


@gluon.jit
def go_on(shared, acc, slot, phase, steps, GROUP: gl.constexpr, STAGES: gl.constexpr):
    """So many steps more of a leaf. The last of them is still under way."""
    for _ in range(steps):
        acc = ask(shared, acc, slot, phase, True, GROUP)
        acc = warpgroup_mma_wait(1, deps=[acc])
        free_before(shared, slot, STAGES)
        slot, phase = advance(slot, phase, STAGES)
    return acc, slot, phase


@gluon.jit
def multiply(
    shared, parked, y, sizes, LEAVES: gl.constexpr, GROUP: gl.constexpr, STAGES: gl.constexpr, BAND: gl.constexpr,
    PROGRAMS: gl.constexpr, ADDED: gl.constexpr,
):  # fmt: skip
    """One group's rows of every tile of this program: pair of leaves after pair, on through the tiles."""
    PAIRS: gl.constexpr = LEAVES // 2
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 128, 16])
    pairs = gl.cdiv(sizes[0] - gl.program_id(0), PROGRAMS) * PAIRS
    steps = sizes[5] // LEAVES
    early = gl.maximum(steps - 4, 0)  # steps of a leaf until what a tile is added to has come
    slot, phase = gl.program_id(0) * 0, gl.program_id(0) * 0
    first = gl.zeros([64, 128], gl.float32, layout=layout)
    pair = gl.zeros([64, 128], gl.float32, layout=layout)
    total = gl.zeros([64, 128], gl.float32, layout=layout)
    for n in range(pairs):
        first = ask(shared, first, slot, phase, False, GROUP)
        slot, phase = advance(slot, phase, STAGES)
        first = ask(shared, first, slot, phase, True, GROUP)
        first = warpgroup_mma_wait(2, deps=[first])
        if n > 0:
            total, pair = keep(total, pair, parked, y, n - 1, sizes, LEAVES, GROUP, BAND, PROGRAMS, ADDED, layout)
        first = warpgroup_mma_wait(1, deps=[first])
        free_before(shared, slot, STAGES)
        slot, phase = advance(slot, phase, STAGES)
        first, slot, phase = go_on(shared, first, slot, phase, early, GROUP, STAGES)
        if (n > 0) & (n % PAIRS == 0):
            store(total, pair, y, n // PAIRS - 1, sizes, PAIRS, GROUP, BAND, PROGRAMS, ADDED, layout)
        first, slot, phase = go_on(shared, first, slot, phase, steps - 2 - early, GROUP, STAGES)
        pair = ask(shared, pair, slot, phase, False, GROUP)
        first, pair = warpgroup_mma_wait(1, deps=[first, pair])
        free_before(shared, slot, STAGES)
        slot, phase = advance(slot, phase, STAGES)
        pair, slot, phase = go_on(shared, pair, slot, phase, steps - 1, GROUP, STAGES)
        first, pair = warpgroup_mma_wait(0, deps=[first, pair])
        free_before(shared, slot, STAGES)
        pair = first + pair
    total, pair = keep(total, pair, parked, y, pairs - 1, sizes, LEAVES, GROUP, BAND, PROGRAMS, ADDED, layout)
    store(total, pair, y, pairs // PAIRS - 1, sizes, PAIRS, GROUP, BAND, PROGRAMS, ADDED, layout)


@gluon.jit
def keep(
    total, pair, parked, y, n, sizes, LEAVES: gl.constexpr, GROUP: gl.constexpr, BAND: gl.constexpr,
    PROGRAMS: gl.constexpr, ADDED: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """(total, pair) when the sum of this program's pair n is there.

    After a tile's last pair one of them is the tile's sum and the other what it is added to: `pair`, or `total` where
    a tile has one pair only, so that its sum need not move.
    """
    PAIRS: gl.constexpr = LEAVES // 2
    place = n % PAIRS
    if PAIRS == 4:
        both = total + pair
        if place == 1:
            parked.store(both)
        if place == 3:
            both = parked.load(layout) + both
        total = gl.where(place % 2 == 0, pair, both)
    if PAIRS == 2:
        total = gl.where(place == 0, pair, total + pair)
    if PAIRS == 1 and not ADDED:
        total = pair
    if ADDED:  # noqa: SIM102 (this one the compiler knows)
        if place == PAIRS - 1:
            at, there = addresses(y, n // PAIRS, sizes, GROUP, BAND, PROGRAMS, layout)
            if PAIRS == 1:
                total = gl.load(at, mask=there, other=0.0)
            else:
                pair = gl.load(at, mask=there, other=0.0)
    return total, pair


@gluon.jit
def store(
    total, pair, y, turn, sizes, PAIRS: gl.constexpr, GROUP: gl.constexpr, BAND: gl.constexpr,
    PROGRAMS: gl.constexpr, ADDED: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    at, there = addresses(y, turn, sizes, GROUP, BAND, PROGRAMS, layout)
    if ADDED:
        total += pair
    gl.store(at, total.to(y.dtype.element_ty), mask=there)


@gluon.jit
def addresses(y, turn, sizes, GROUP: gl.constexpr, BAND: gl.constexpr, PROGRAMS: gl.constexpr, layout: gl.constexpr):
    """Of this group's part of the program's tile, and which of them there are."""
    _, tiles_down, tiles_across, num_rows, N, _ = sizes
    down, across = corner(gl.program_id(0) + turn * PROGRAMS, tiles_down, tiles_across, BAND)
    row = (down * 2 + GROUP) * 64 + gl.arange(0, 64, layout=gl.SliceLayout(1, layout))
    column = gl.arange(0, 128, layout=gl.SliceLayout(0, layout))
    return (y + (row.to(gl.int64) * N + across * 128))[:, None] + column[None, :], (row < num_rows)[:, None]


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
    parked = gl.allocate_shared_memory(gl.float32, [2, 64 if LEAVES > 4 else 1, 128], spare)
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
    """Fill y, or add to it. Leaves are equal, two steps of 64 at least and whole ones; columns whole tiles of 128."""
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
