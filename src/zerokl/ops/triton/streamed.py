"""A chain for few rows whose weights come by bulk copies that begin before the kernel ahead has ended.

With few rows a product takes as long as its weights take to come. Between two products the memory would idle: while a
norm or attention runs, and while a kernel starts. So this one is launched early, asks for its first weights at once,
and waits for the kernel ahead only before it reads that one's result. Weights are never what a kernel just wrote.

    copies    w 0 1 2 .. STAGES - 1 | wait | x 0 1 2 .. |  then one place of the ring after the other, as it gets free
    products                               | chain of block 0, of block 1, ...

One row may come as float32 from the residual, with the norm that it needs: each program normalises it, and has it once
in shared memory instead of eight rows beside each block of weights.

Maths, rounding, order: those of `chain.py`, for whole steps of K, without bias; of the norm, those of `rms_norm.py`.
Written in Gluon, where copies and waits are explicit; the interpreter doesn't know it, and the reference schedule
stands in.
"""

from __future__ import annotations

from typing import Any

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, mma_v2, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from zerokl.ops.choices import REFERENCE, Streamed
from zerokl.ops.triton.chain import run_chain
from zerokl.ops.triton.numbers import EARLY, INTERPRETED


@gluon.jit
def let_next():
    gl.inline_asm_elementwise(
        "griddepcontrol.launch_dependents; // dummy $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def wait_for_last():
    gl.inline_asm_elementwise("griddepcontrol.wait; // dummy $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def copy_weights(
    w, bars, ring, n, total, steps, N, first, programs,
    COLUMNS: gl.constexpr, DEPTH: gl.constexpr, STAGES: gl.constexpr, GATED: gl.constexpr, BYTES: gl.constexpr,
):  # fmt: skip
    """Ask for block n of this program, if there is one; its place's barrier also counts the rows of x."""
    pred = n < total
    place, column, k = n % STAGES, (first + n // steps * programs) * COLUMNS, n % steps * DEPTH
    bar = bars.index(place)
    mbarrier.expect(bar, BYTES, pred=pred)
    if GATED:
        tma.async_copy_global_to_shared(w, [column, k], bar, ring.index(place * 2), pred=pred)
        tma.async_copy_global_to_shared(w, [N + column, k], bar, ring.index(place * 2 + 1), pred=pred)
    else:
        tma.async_copy_global_to_shared(w, [column, k], bar, ring.index(place), pred=pred)


@gluon.jit
def copy_rows(x, bars, ring, n, total, steps, DEPTH: gl.constexpr, STAGES: gl.constexpr):
    place = n % STAGES
    tma.async_copy_global_to_shared(x, [0, n % steps * DEPTH], bars.index(place), ring.index(place), pred=n < total)


@gluon.jit
def normed(x, weight, eps, x_row, E: gl.constexpr, WARPS: gl.constexpr):
    """`rms_norm.py` bit for bit, of one row, which goes to shared memory; waits for the kernel ahead."""
    lie: gl.constexpr = gl.BlockedLayout([1, 1, 8], [1, 32, 1], [WARPS, 1, 1], [2, 1, 0])
    part = gl.arange(0, E // 256, layout=gl.SliceLayout(1, gl.SliceLayout(2, lie)))
    lane = gl.arange(0, 32, layout=gl.SliceLayout(0, gl.SliceLayout(2, lie)))
    one = gl.arange(0, 8, layout=gl.SliceLayout(0, gl.SliceLayout(1, lie)))
    at = gl.expand_dims(gl.expand_dims(part, 1), 2) * 256 + gl.expand_dims(gl.expand_dims(lane, 0), 2) * 8
    at += gl.expand_dims(gl.expand_dims(one, 0), 1)
    by = gl.load(weight + at)
    wait_for_last()
    row = gl.load(x + at)
    # As there: eight numbers of a thread, its warp's threads, then the warps, as if they were threads of one.
    sums = gl.sum(gl.sum(row * row, 2), 1)
    sums = gl.convert_layout(sums, gl.BlockedLayout([1], [32], [WARPS], [0]))
    mean = gl.div_rn(gl.sum(sums, 0), E * 1.0)
    factor = gl.div_rn(1.0, gl.sqrt_rn(mean + eps))
    x_row.store(gl.reshape((row * factor * by).to(gl.bfloat16), [E]))


@gluon.jit(do_not_specialize=["num_rows"])
def streamed(
    x, w, y, norm, eps, num_rows, N, K, E: gl.constexpr,
    ROWS: gl.constexpr, COLUMNS: gl.constexpr, DEPTH: gl.constexpr, STAGES: gl.constexpr, GATED: gl.constexpr,
    ADDED: gl.constexpr, SOON: gl.constexpr,
):  # fmt: skip
    """A program takes every tile of COLUMNS weights whose number is its own modulo the number of programs.

    E: 0, or as K where x is one row, float32, that `normed` has to make.
    """
    if SOON:
        let_next()
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [COLUMNS // 16, 1], [16, 8])
    LEFT: gl.constexpr = gl.DotOperandLayout(0, SUMS, 2)
    RIGHT: gl.constexpr = gl.DotOperandLayout(1, SUMS, 2)
    WIDE: gl.constexpr = 2 if GATED else 1
    BYTES: gl.constexpr = (COLUMNS * WIDE + (0 if E else ROWS)) * DEPTH * 2
    first, programs = gl.program_id(0), gl.num_programs(0)
    steps = K // DEPTH
    mine = (gl.cdiv(N, COLUMNS) - first + programs - 1) // programs
    total = mine * steps
    w_ring = gl.allocate_shared_memory(gl.bfloat16, [STAGES * WIDE, COLUMNS, DEPTH], w.layout)
    if E:
        PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
        x_row = gl.allocate_shared_memory(gl.bfloat16, [E], PLAIN)
        x_parts = x_row._reinterpret(gl.bfloat16, [E // DEPTH, DEPTH], PLAIN)
    else:
        x_ring = gl.allocate_shared_memory(gl.bfloat16, [STAGES, ROWS, DEPTH], x.layout)
    bars = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(bars.index(i), count=1)
    fence_async_shared()
    for n in gl.static_range(STAGES):
        copy_weights(w, bars, w_ring, n, total, steps, N, first, programs, COLUMNS, DEPTH, STAGES, GATED, BYTES)
    if E:
        normed(x, norm, eps, x_row, E, COLUMNS // 16)
    else:
        wait_for_last()
        for n in gl.static_range(STAGES):
            copy_rows(x, bars, x_ring, n, total, steps, DEPTH, STAGES)
    block = 0
    for turn in range(mine):
        acc = gl.zeros([COLUMNS, ROWS], gl.float32, SUMS)
        up = gl.zeros([COLUMNS, ROWS], gl.float32, SUMS)
        for step in range(steps):
            place = block % STAGES
            mbarrier.wait(bars.index(place), (block // STAGES) & 1)
            if E:
                # The other rows that the instruction takes are the same again, and nobody's.
                rows = gl.expand_dims(x_parts.index(step).load(gl.SliceLayout(1, RIGHT)), 1)
                rows = rows.broadcast_to([DEPTH, ROWS])
            else:
                rows = x_ring.index(place).permute((1, 0)).load(RIGHT)
            acc = mma_v2(w_ring.index(place * WIDE).load(LEFT), rows, acc)
            if GATED:
                up = mma_v2(w_ring.index(place * WIDE + 1).load(LEFT), rows, up)
            later = block + STAGES
            copy_weights(w, bars, w_ring, later, total, steps, N, first, programs, COLUMNS, DEPTH, STAGES, GATED, BYTES)
            if not E:
                copy_rows(x, bars, x_ring, later, total, steps, DEPTH, STAGES)
            block += 1
        if not SOON:  # noqa: SIM102 - known when this is compiled; the other is not
            if turn == mine - 1:
                let_next()
        column = (first + turn * programs) * COLUMNS + gl.arange(0, COLUMNS, layout=gl.SliceLayout(1, SUMS))
        row = gl.arange(0, ROWS, layout=gl.SliceLayout(0, SUMS))
        inside = (column < N)[:, None] & (row < num_rows)[None, :]
        at_y = y + row.to(gl.int64)[None, :] * N + column[:, None]
        if GATED:
            g, u = acc.to(gl.bfloat16).to(gl.float32), up.to(gl.bfloat16).to(gl.float32)
            ones = gl.full([COLUMNS, ROWS], 1.0, gl.float32, SUMS)
            acc = gl.div_rn(g, ones + gl.exp2(g * -1.4426950408889634)) * u
        if ADDED:
            acc += gl.load(at_y, mask=inside, other=0.0)
        gl.store(at_y, acc.to(y.dtype.element_ty), mask=inside)


def run_streamed(x: Any, w: Any, y: Any, way: Streamed, added: bool, gated: bool, norm: Any = None) -> Any:
    """Fill y, or add to it; `w` and `y` as in `run_chain`. norm: of x, one row of float32 then, (weights, eps)."""
    if INTERPRETED:
        return run_chain(x, w, y, REFERENCE, None, added, gated)
    (rows, depth), columns = x.shape, y.shape[1]
    tile = max(8, triton.next_power_of_2(rows))
    tiles = triton.cdiv(columns, way.columns)
    streamed[(min(tiles, way.programs),)](
        x if norm else blocks(x, tile, way.depth), blocks(w, way.columns, way.depth), y, *(norm or (y, 0.0)), rows,
        columns, depth, depth if norm else 0, tile, way.columns, way.depth, way.stages, gated, added, way.soon,
        num_warps=way.columns // 16, **EARLY,
    )  # fmt: skip
    return y


def blocks(matrix: Any, rows: int, columns: int) -> TensorDescriptor:
    layout = gl.NVMMASharedLayout.get_default_for([rows, columns], gl.bfloat16)
    return TensorDescriptor(matrix, list(matrix.shape), list(matrix.stride()), [rows, columns], layout)
