"""Products of one row with packed weights: the warpgroup's matrix instruction, with the weights in registers.

One sum may not be cut, so what a row costs at least is the instruction's latency for every 16 k: 20 cycles of this one,
36 of `mma`. A program has 64 outputs (gated: 32 of gate, 32 of up), a warp 16 of them. x lies in shared memory as it
is: the other seven rows that the instruction takes are the same numbers from another place on, and nobody reads what
they give. Copies of weights begin before the kernel ahead has ended: only x waits for it.

The compiler knows no such operand from its own types, so the loop's body is assembly (`one_row_code.py`), and Gluon is
what says which thread has what.

    shared memory   x, 128 bytes | sums of up, 128 bytes | sums between teams | per team: places of (words, scales)

Maths, rounding, order, bits: those of `chain.py` with the weight's numbers; a factor per output, times or through, on
the finished sum
Free        teams, outputs per program, tiles per copy, copies on their way (admit.py)
"""

from __future__ import annotations

from typing import Any

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from zerokl.ops.choices import OneRow
from zerokl.ops.triton import one_row_code as code
from zerokl.ops.triton.numbers import EARLY

COPY = gl.constexpr(code.COPY_BLOCK)
STEP = gl.constexpr(code.STEP_BLOCK)
TURN = gl.constexpr(code.TURN_BLOCK)
GIVEN = gl.constexpr(code.X_BLOCK)
SUMS_AFTER = gl.constexpr("wgmma.wait_group.sync.aligned 0;")
SUMS_OF_TURNS = gl.constexpr(
    "{\n.reg .pred p;\nsetp.eq.s32 p, $5, 0;\n@p bar.sync 1, 256;\nld.shared.v4.f32 {$0, $1, $2, $3}, [$4];\n}"
)
"""Team 1 has no more turns; what it reads too is not used."""
NO_SUMS_YET = gl.constexpr(
    "{\n.reg .pred p;\n.reg .f32 z;\nsetp.eq.s32 p, $2, 1;\nmov.f32 z, 0f00000000;\n"
    "@p st.shared.v4.f32 [$1], {z, z, z, z};\n@p bar.arrive 1, 256;\nmov.b32 $0, 0;\n}"
)
X_IS_THERE = gl.constexpr("fence.proxy.async.shared::cta;\nbar.sync 0;\nmov.b32 $0, 0;")
UP_TO_GATE = gl.constexpr(
    "{\n.reg .pred p;\nsetp.ne.b32 p, $5, 0;\n@p st.shared.f32 [$4], $2;\n@p st.shared.f32 [$4+32], $3;\nbar.sync 0;\n"
    "ld.shared.f32 $0, [$4];\nld.shared.f32 $1, [$4+32];\n}"
)


@gluon.jit
def loaded(at, there, WANTED: gl.constexpr):
    return gl.load(at, mask=there, other=0.0) if WANTED else 0.0


@gluon.jit
def finished(acc, factor, bias, SCALED: gl.constexpr, BIASED: gl.constexpr):
    acc = acc * factor if SCALED == 1 else gl.div_rn(acc, factor)
    if BIASED:
        acc += bias
    return acc


@gluon.jit
def gated(gate, up):
    g, u = gate.to(gl.bfloat16).to(gl.float32), up.to(gl.bfloat16).to(gl.float32)
    ones = gl.zeros_like(g) + 1.0
    return gl.div_rn(g, ones + gl.exp2(g * -1.4426950408889634)) * u


@gluon.jit
def one_row(
    x, words, scales, factors, bias, y, N, K,
    NVFP4: gl.constexpr, SCALED: gl.constexpr, GATED: gl.constexpr, BIASED: gl.constexpr, ADDED: gl.constexpr,
    TEAMS: gl.constexpr, PANELS: gl.constexpr, T: gl.constexpr, S: gl.constexpr, POOL: gl.constexpr,
    X_BYTES: gl.constexpr, AT_ONCE: gl.constexpr, COPY_TEXT: gl.constexpr, STEP_TEXT: gl.constexpr,
    GIVEN_TEXT: gl.constexpr,
):  # fmt: skip
    TILE: gl.constexpr = 512 if NVFP4 else 1024
    PLACE: gl.constexpr = 4 * T * (576 if NVFP4 else 1024)
    one: gl.constexpr = gl.BlockedLayout([1, 1, 1], [1, 8, 4], [4 * TEAMS, 1, 1], [2, 1, 0])
    pool = gl.allocate_shared_memory(gl.int32, [POOL // 128, 32], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    # The compiler must see some use of it.
    pool.index(X_BYTES // 128).store(gl.full([32], 0, gl.int32, layout=gl.BlockedLayout([1], [32], [4 * TEAMS], [0])))
    zero = gl.full([4 * TEAMS, 8, 4], 0, gl.int32, layout=one)
    warp = gl.arange(0, 4 * TEAMS, layout=gl.SliceLayout(1, gl.SliceLayout(2, one)))
    warp = gl.expand_dims(gl.expand_dims(warp, 1), 2) + zero
    g = gl.expand_dims(gl.expand_dims(gl.arange(0, 8, layout=gl.SliceLayout(0, gl.SliceLayout(2, one))), 0), 2) + zero
    t = gl.expand_dims(gl.expand_dims(gl.arange(0, 4, layout=gl.SliceLayout(0, gl.SliceLayout(0, one))), 0), 0) + zero
    team, w, lane = warp // 4, warp % 4, g * 4 + t
    num_panels, num_tiles = N // 16, K // 64
    blocks = num_tiles // T
    if GATED:
        panel = gl.program_id(0) * 2 + w % 2
        live = panel < num_panels
        own = gl.where(live, panel + w // 2 * num_panels, 0)
    else:
        panel = gl.program_id(0) * PANELS + w
        live = (panel < num_panels) & (w < PANELS)
        own = gl.where(live, panel, 0)
    base = gl.inline_asm_elementwise("mov.u32 $0, global_smem;", "=r,r", [zero], dtype=gl.int32, is_pure=True, pack=1)
    sums = base + X_BYTES + 128 + (w * 32 + lane) * 16
    ring = base + X_BYTES + 128 + 2048 + team * (S * PLACE)
    to_words = ring + w * (T * TILE) + lane * 16
    to_scales = ring + 4 * T * TILE + w * (T * 64) + lane * 16
    own_scales = ring + 4 * T * TILE + w * (T * 64) + g * 8
    from_words = words.to(gl.int64) + own.to(gl.int64) * (num_tiles * TILE) + team * (T * TILE) + lane * 16
    from_scales = scales.to(gl.int64) + own.to(gl.int64) * (num_tiles * 64) + team * (T * 64) + lane * 16
    wanted = gl.where(live, gl.where(lane < 4 * T, 3, 1), 0)
    gdc_launch_dependents()
    for i in gl.static_range(S - 1):
        gl.inline_asm_elementwise(
            COPY_TEXT, COPY,
            [to_words + i * PLACE, to_scales + i * PLACE, from_words, from_scales,
             gl.where(i * TEAMS + team < blocks, wanted, 0)],
            dtype=gl.int32, is_pure=False, pack=1,
        )  # fmt: skip
        from_words += TEAMS * T * TILE
        from_scales += TEAMS * T * 64
    gdc_wait()
    thread = warp * 32 + lane
    left, to_x, from_x = 2 * K - thread * 16, base + thread * 16, x.to(gl.int64) + thread * 16
    STRIDE: gl.constexpr = 2048 * TEAMS * AT_ONCE
    for _ in range((2 * K + STRIDE - 1) // STRIDE):
        gl.inline_asm_elementwise(GIVEN_TEXT, GIVEN, [to_x, from_x, left], dtype=gl.int32, is_pure=False, pack=1)
        left, to_x, from_x = left - STRIDE, to_x + STRIDE, from_x + STRIDE
    # What the end needs is asked for now.
    first, shift = panel * 16 + g, gl.where(w < 2, 0, N) if GATED else 0
    f0, f2 = loaded(factors + shift + first, live, True), loaded(factors + shift + first + 8, live, True)
    b0, b2 = loaded(bias + shift + first, live, BIASED), loaded(bias + shift + first + 8, live, BIASED)
    at_y, mask = y + first, live & (t == 0) & (team == 0)
    y0, y2 = loaded(at_y, mask, ADDED), loaded(at_y + 8, mask, ADDED)
    gl.inline_asm_elementwise(X_IS_THERE, "=r,r", [zero], dtype=gl.int32, is_pure=False, pack=1)
    # Rows of x 16 bytes apart, pieces of 8 k too: row 0 is x, the others nobody's.
    at_x = ((base & 0x3FFFF) >> 4).to(gl.int64) + 0x0000000800010000 + (team * (8 * T)).to(gl.int64)
    c0 = gl.full([4 * TEAMS, 8, 4], 0.0, gl.float32, layout=one)
    c1, c2, c3 = c0, c0, c0
    read, write = 0, (S - 1) * PLACE
    if TEAMS == 2:
        gl.inline_asm_elementwise(NO_SUMS_YET, "=r,r,r", [sums, team], dtype=gl.int32, is_pure=False, pack=1)
    for i in range(blocks // TEAMS):
        more = gl.where((i + S - 1) * TEAMS + team < blocks, wanted, 0)
        if TEAMS == 2:
            gl.inline_asm_elementwise(
                STEP_TEXT, TURN,
                [to_words + read, own_scales + read, to_words + write, to_scales + write, from_words, from_scales, more,
                 at_x, sums, team + 1, 2 - team],
                dtype=gl.int32, is_pure=False, pack=1,
            )  # fmt: skip
        else:
            c0, c1, c2, c3 = gl.inline_asm_elementwise(
                STEP_TEXT, STEP,
                [c0, c1, c2, c3, to_words + read, own_scales + read, to_words + write, to_scales + write, from_words,
                 from_scales, more, at_x],
                dtype=(gl.float32,) * 4, is_pure=False, pack=1,
            )  # fmt: skip
        from_words += TEAMS * T * TILE
        from_scales += TEAMS * T * 64
        at_x += TEAMS * 8 * T
        write = read
        read = gl.where(read == (S - 1) * PLACE, 0, read + PLACE)
    if TEAMS == 2:
        c0, c1, c2, c3 = gl.inline_asm_elementwise(
            SUMS_OF_TURNS, "=f,=f,=f,=f,r,r", [sums, team], dtype=(gl.float32,) * 4, is_pure=False, pack=1
        )
    else:
        c0, c1, c2, c3 = gl.inline_asm_elementwise(
            SUMS_AFTER, "=f,=f,=f,=f,0,1,2,3", [c0, c1, c2, c3], dtype=(gl.float32,) * 4, is_pure=False, pack=1
        )
    c0, c2 = finished(c0, f0, b0, SCALED, BIASED), finished(c2, f2, b2, SCALED, BIASED)
    if GATED:
        place = base + X_BYTES + w % 2 * 64 + g * 4
        gives = gl.where((w >= 2) & (t == 0) & (team == 0), 1, 0)
        u0, u2 = gl.inline_asm_elementwise(
            UP_TO_GATE, "=f,=f,f,f,r,r", [c0, c2, place, gives], dtype=(gl.float32,) * 2, is_pure=False, pack=1
        )
        c0, c2 = gated(c0, u0), gated(c2, u2)
        mask = mask & (w < 2)
    if ADDED:
        c0, c2 = c0 + y0, c2 + y2
    gl.store(at_y, c0.to(y.dtype.element_ty), mask=mask)
    gl.store(at_y + 8, c2.to(y.dtype.element_ty), mask=mask)


def shared_bytes(depth: int, nvfp4: bool, way: OneRow) -> tuple[int, int]:
    """(of x, of all). All is one piece from the first byte on: the assembly reckons with that (test_layouts.py)."""
    x_bytes = triton.cdiv(2 * depth, 128) * 128 + 128
    places = way.teams * way.copies * 4 * way.tiles * (576 if nvfp4 else 1024)
    return x_bytes, x_bytes + 128 + 2048 + places


def run_one_row(x: Any, weight: Any, y: Any, way: OneRow, bias: Any, added: bool, gated: bool) -> Any:
    """Fill y, or add to it."""
    x = x if x.data_ptr() % 16 == 0 else x.clone()
    columns, depth = y.shape[1], x.shape[1]
    nvfp4, factors = weight.kind == "nvfp4", weight.factors
    x_bytes, pool = shared_bytes(depth, nvfp4, way)
    at_once = min(12 // way.teams, triton.cdiv(depth, 1024 * way.teams))
    step = (code.turn_block if way.teams == 2 else code.step_block)(nvfp4, way.tiles, way.copies)
    one_row[(triton.cdiv(columns // 16, 2 if gated else way.panels),)](
        x, weight.words, weight.scales if nvfp4 else weight.words, factors, bias if bias is not None else factors, y,
        columns, depth, nvfp4, weight.scaled, gated, bias is not None, added, way.teams, way.panels, way.tiles,
        way.copies, pool, x_bytes, at_once, code.copy_block(nvfp4, way.tiles), step,
        code.x_block(at_once, 128 * way.teams), num_warps=4 * way.teams, **EARLY,
    )  # fmt: skip
    return y
