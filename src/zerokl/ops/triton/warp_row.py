"""Products of one row with packed weights that are many short chains, or wide: a warp for 16 outputs of each leaf.

Where sums are cut in leaves, or gate and up are many outputs, a row's time is not that of one chain (as in `relay.py`):
a warp unpacks and multiplies in turns, and others have the processor meanwhile. A thread copies what it alone will
read, the first of it before the kernel ahead has ended. An output's leaves, or its gate and up, are in one program and
meet in its shared memory.

    shared memory   x | per warp: places of (words, scales) | sums

Maths, rounding, order, bits: those of `leaves.py` with the weight's numbers, for 2, 4 or 8 equal leaves of whole
copies, and a factor per output, times or through, on each leaf's sum; or those of `chain.py`, gated
Free        panels per program, tiles per copy, copies on their way (admit.py)
"""

from __future__ import annotations

from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_launch_dependents

from zerokl.ops.choices import PROCESSORS, WarpRow
from zerokl.ops.triton import warp_row_code as code
from zerokl.ops.triton.numbers import EARLY
from zerokl.ops.triton.one_row import finished, gated, loaded

OF_A_PROCESSOR, OF_A_PROGRAM = 228 * 1024, 1024
"""Bytes of shared memory that a processor has, and that a program takes besides its own."""
CHAIN = gl.constexpr(code.CHAIN)
MEET = gl.constexpr(code.MEET)


@gluon.jit
def warp_row(
    x, words, scales, factors, bias, y, N, K,
    NVFP4: gl.constexpr, SCALED: gl.constexpr, GATED: gl.constexpr, BIASED: gl.constexpr, ADDED: gl.constexpr,
    LEAVES: gl.constexpr, PANELS: gl.constexpr, SUMS: gl.constexpr, POOL: gl.constexpr,
    CHAIN_TEXT: gl.constexpr, MEET_TEXT: gl.constexpr,
):  # fmt: skip
    gdc_launch_dependents()
    # What a panel's warps have each: a leaf, or gate and up, which lie one behind the other too.
    SIDES: gl.constexpr = 2 if GATED else LEAVES
    WARPS: gl.constexpr = PANELS * SIDES
    one: gl.constexpr = gl.BlockedLayout([1, 1, 1], [1, 8, 4], [WARPS, 1, 1], [2, 1, 0])
    pool = gl.allocate_shared_memory(gl.int32, [POOL // 128, 32], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    # The compiler must see some use of it.
    pool.index(POOL // 128 - 1).store(gl.full([32], 0, gl.int32, layout=gl.BlockedLayout([1], [32], [WARPS], [0])))
    zero = gl.full([WARPS, 8, 4], 0, gl.int32, layout=one)
    w = gl.arange(0, WARPS, layout=gl.SliceLayout(1, gl.SliceLayout(2, one)))
    w = gl.expand_dims(gl.expand_dims(w, 1), 2) + zero
    g = gl.expand_dims(gl.expand_dims(gl.arange(0, 8, layout=gl.SliceLayout(0, gl.SliceLayout(2, one))), 0), 2) + zero
    t = gl.expand_dims(gl.expand_dims(gl.arange(0, 4, layout=gl.SliceLayout(0, gl.SliceLayout(0, one))), 0), 0) + zero
    lane, side, first = g * 4 + t, w % SIDES, gl.program_id(0) * PANELS
    panel, tiles = first + w // SIDES, K // 64
    own = (side * (N // 16) + panel).to(gl.int64) * (tiles // LEAVES)
    at_words = words.to(gl.int64) + own * (512 if NVFP4 else 1024) + lane * 16
    at_scales = scales.to(gl.int64) + own * 64 + lane * 16
    mine = panel * 16 + g + (side * N if GATED else 0)
    f0, f2 = gl.load(factors + mine), gl.load(factors + mine + 8)
    b0, b2 = loaded(bias + mine, mine >= 0, BIASED and GATED), loaded(bias + mine + 8, mine >= 0, BIASED and GATED)
    # What a thread ends with is another output than those whose leaf it has.
    thread = w * 32 + lane
    live, output = thread < PANELS * 16, first * 16 + gl.where(thread < PANELS * 16, thread, 0)
    b = loaded(bias + output, live, BIASED and not GATED)
    c0, _, c2, _, before = gl.inline_asm_elementwise(
        CHAIN_TEXT, CHAIN,
        [thread, zero if GATED else side, lane, zero.to(gl.int64) + x.to(gl.int64), at_words, at_scales,
         (y + output).to(gl.int64), gl.where(live, 1, 0) if ADDED else zero],
        dtype=(gl.float32,) * 4 + (gl.int32,), is_pure=False, pack=1,
    )  # fmt: skip
    c0, c2 = finished(c0, f0, b0, SCALED, BIASED and GATED), finished(c2, f2, b2, SCALED, BIASED and GATED)
    base = gl.inline_asm_elementwise("mov.u32 $0, global_smem;", "=r,r", [zero], dtype=gl.int32, is_pure=True, pack=1)
    sums = base + SUMS
    total, other = gl.inline_asm_elementwise(
        MEET_TEXT, MEET,
        [c0, c2, sums + w * 64 + g * 4, gl.where(t == 0, 1, 0),
         sums + gl.where(live, thread // 16 * (SIDES * 64) + thread % 16 * 4, 0)],
        dtype=(gl.float32,) * 2, is_pure=False, pack=1,
    )  # fmt: skip
    if GATED:
        total = gated(total, other)
    elif BIASED:
        total += b
    if ADDED:
        total += before.to(gl.float32, bitcast=True)
    gl.store(y + output, total.to(y.dtype.element_ty), mask=live)


def shared_bytes(depth: int, sides: int, nvfp4: bool, way: WarpRow, programs: int) -> tuple[int, int]:
    """(where sums lie, of all). All is one piece from the first byte on: the assembly reckons with that
    (test_layouts.py).

    So much that no processor can take more programs than its share, which it does where others are still busy, and then
    they take twice the time (docs/log.md).
    """
    sums = 2 * depth + sides * way.panels * way.copies * code.place_bytes(nvfp4, way.tiles)
    share = -(-programs // PROCESSORS)
    alone = OF_A_PROCESSOR // (share + 1) - OF_A_PROGRAM
    return sums, -(-max(sums + 64 * sides * way.panels, alone) // 128) * 128 + 128


def run_warp_row(x: Any, weight: Any, y: Any, way: WarpRow, bias: Any, added: bool, gated: bool = False) -> Any:
    """Fill y, or add to it. `weight`: PackedLeaves of one size or, gated, a PackedMatrix."""
    x = x if x.data_ptr() % 16 == 0 else x.clone()
    leaves, first = (1, weight) if gated else (len(weight.leaves), weight.leaves[0])
    columns, depth, nvfp4, sides = y.shape[1], x.shape[1], first.kind == "nvfp4", 2 if gated else leaves
    warps, programs = way.panels * sides, columns // (16 * way.panels)
    warp_row[(programs,)](
        x, weight.words, weight.scales if nvfp4 else weight.words, first.factors,
        bias if bias is not None else first.factors, y, columns, depth,
        nvfp4, first.scaled, gated, bias is not None, added, leaves, way.panels,
        *shared_bytes(depth, sides, nvfp4, way, programs),
        code.chain(nvfp4, depth, leaves, way.tiles, way.copies, 32 * warps), code.meet(sides, gated),
        num_warps=warps, **EARLY,
    )  # fmt: skip
    return y
