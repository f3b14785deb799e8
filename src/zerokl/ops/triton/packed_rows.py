"""Products of few rows with packed weights: codes go from memory to the matrix unit through registers alone.

A warp has panels of 16 outputs, whose words lie as its threads want them (`packed.py`): a thread reads back from shared
memory the 16 bytes that it copied there, makes bfloat16 numbers of them by shifts and one exact product for two, and
feeds them to `mma`. Written in Gluon, because that nothing moves between threads has to be said, not hoped for.

Only x waits for the kernel ahead, so this could be launched before that one has ended; measured, one sequence gains 3 %
in NVFP4 and loses 6 % in FP8, and sixteen lose 11 % and gain 4 %, so it is not (docs/log.md).

Maths, rounding, order, bits: those of `chain.py` with the weight's numbers; nvfp4, fp8: a factor per output, times or
through, on the finished sum; fp8_block: acc = fma(scale, sum of 128 k from +0, acc)
Free        rows, panels per program, tiles per copy, copies in flight (admit.py)
"""

from __future__ import annotations

from typing import Any

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from zerokl.ops.choices import Packed
from zerokl.ops.triton.numbers import EXACT

NVFP4_PAIRS = gl.constexpr("""{
.reg .b32 a, b;
and.b32 $0, $4, 0x81C081C0;
shl.b32 a, $4, 3;
and.b32 $1, a, 0x81C081C0;
shl.b32 a, $4, 6;
shl.b32 b, $4, 2;
and.b32 a, a, 0x01C001C0;
lop3.b32 $2, b, 0x80008000, a, 0xEA;
shr.u32 a, $4, 3;
shl.b32 b, $4, 1;
and.b32 a, a, 0x01C001C0;
lop3.b32 $3, b, 0x80008000, a, 0xEA;
mul.rn.bf16x2 $0, $0, $5;
mul.rn.bf16x2 $1, $1, $5;
mul.rn.bf16x2 $2, $2, $6;
mul.rn.bf16x2 $3, $3, $6;
}""")
"""A word, the scales of its two outputs -> four pairs of bfloat16."""

FP8_PAIRS = gl.constexpr("""{
.reg .b32 a, b, c;
and.b32 $0, $2, 0x87F087F0;
shl.b32 a, $2, 4;
shr.u32 b, $2, 4;
and.b32 a, a, 0x80F080F0;
lop3.b32 $1, b, 0x07000700, a, 0xEA;
mov.b32 c, 0x7B807B80;
mul.rn.bf16x2 $0, $0, c;
mul.rn.bf16x2 $1, $1, c;
}""")
"""A word -> two pairs: the bits as bfloat16 are 2^-120 of the number."""


@gluon.jit
def numbers_of(pair):
    """[..] of two bfloat16 in 32 bits -> [.., 2]."""
    low = gl.inline_asm_elementwise(
        "{ .reg .b16 h; mov.b32 {$0, h}, $1; }", "=h,r", [pair], dtype=gl.bfloat16, is_pure=True, pack=1
    )
    high = gl.inline_asm_elementwise(
        "{ .reg .b16 h; mov.b32 {h, $0}, $1; }", "=h,r", [pair], dtype=gl.bfloat16, is_pure=True, pack=1
    )
    return gl.join(low, high)


@gluon.jit
def per_step(scales, words: gl.constexpr):
    """Bytes of four steps [W, T, 8] -> each twice as bfloat16 [W, T, 8, 1, 4]."""
    own = gl.convert_layout(scales, gl.SliceLayout(3, gl.SliceLayout(4, words)), assert_trivial=True)
    inner: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(2, gl.SliceLayout(3, words))))
    shift = gl.arange(0, 4, layout=inner) * 8
    shift = gl.expand_dims(gl.expand_dims(gl.expand_dims(gl.expand_dims(shift, 0), 1), 2), 3)
    own, shift = gl.broadcast(gl.expand_dims(gl.expand_dims(own, 3), 4), shift)
    return ((own >> shift) & 255) * 0x01010101 & 0x0FF00FF0 | 0x70007000


@gluon.jit
def nvfp4_tile(words, scales, operand: gl.constexpr, W: gl.constexpr, T: gl.constexpr):
    """[W, T, g, t, step], [W, T, g, half] -> [16 W, 64 T] bf16."""
    layout: gl.constexpr = words.type.layout
    first, second = gl.split(scales)
    first, words = gl.broadcast(per_step(first, layout), words)
    second, words = gl.broadcast(per_step(second, layout), words)
    a, b, c, d = gl.inline_asm_elementwise(
        NVFP4_PAIRS, "=&r,=&r,=&r,=&r,r,r,r", [words, first, second],
        dtype=(gl.int32, gl.int32, gl.int32, gl.int32), is_pure=True, pack=1,
    )  # fmt: skip
    x = gl.join(gl.join(numbers_of(a), numbers_of(b)), gl.join(numbers_of(c), numbers_of(d)))
    x = gl.permute(x, (0, 7, 2, 1, 4, 6, 3, 5))  # W half g T step hi t lo
    return gl.convert_layout(gl.reshape(x, (16 * W, 64 * T)), operand, assert_trivial=True)


@gluon.jit
def fp8_tile(words, operand: gl.constexpr, W: gl.constexpr, T: gl.constexpr):
    """[W, 2 T, g, t, (step, half)] -> [16 W, 64 T] bf16."""
    a, b = gl.inline_asm_elementwise(
        FP8_PAIRS, "=&r,=&r,r", [words], dtype=(gl.int32, gl.int32), is_pure=True, pack=1
    )  # fmt: skip
    x = gl.reshape(gl.join(numbers_of(a), numbers_of(b)), (W, 2 * T, 8, 4, 2, 2, 2, 2))
    x = gl.permute(x, (0, 5, 2, 1, 4, 7, 3, 6))  # W half g T step hi t lo
    return gl.convert_layout(gl.reshape(x, (16 * W, 64 * T)), operand, assert_trivial=True)


@gluon.jit
def copy_codes(
    words, scales, slot_words, slot_scales, panel, num_panels, tile, num_tiles,
    NVFP4: gl.constexpr, W: gl.constexpr, T: gl.constexpr,
):  # fmt: skip
    """Begin to copy T tiles of W panels. What isn't there becomes zero."""
    PER_TILE: gl.constexpr = 128 if NVFP4 else 256
    line: gl.constexpr = gl.BlockedLayout([1, 4], [1, 32], [W, 1], [1, 0])
    own = panel + gl.arange(0, W, layout=gl.SliceLayout(1, line))
    first = own.to(gl.int64) * num_tiles + tile
    word = gl.arange(0, T * PER_TILE, layout=gl.SliceLayout(0, line))
    there = (own < num_panels)[:, None] & (word < (num_tiles - tile) * PER_TILE)[None, :]
    async_copy.async_copy_global_to_shared(slot_words, words + first[:, None] * PER_TILE + word[None, :], mask=there)
    if NVFP4:
        word = gl.arange(0, T * 16, layout=gl.SliceLayout(0, line))
        there = (own < num_panels)[:, None] & (word < (num_tiles - tile) * 16)[None, :]
        async_copy.async_copy_global_to_shared(slot_scales, scales + first[:, None] * 16 + word[None, :], mask=there)


@gluon.jit
def copy_x(x, slot, first_row, num_rows, k, K, ROWS: gl.constexpr, WIDTH: gl.constexpr, W: gl.constexpr):
    line: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [W, 1], [1, 0])
    row = first_row + gl.arange(0, ROWS, layout=gl.SliceLayout(1, line))
    column = k + gl.arange(0, WIDTH, layout=gl.SliceLayout(0, line))
    there = (row < num_rows)[:, None] & (column < K)[None, :]
    async_copy.async_copy_global_to_shared(slot, x + row.to(gl.int64)[:, None] * K + column[None, :], mask=there)


@gluon.jit
def multiplied(
    acc, slot_words, slot_scales, b, factors, panel, num_panels, k, K,
    NVFP4: gl.constexpr, SCALED: gl.constexpr, W: gl.constexpr, T: gl.constexpr,
):  # fmt: skip
    """acc after T more tiles."""
    MMA: gl.constexpr = acc.type.layout
    operand: gl.constexpr = gl.DotOperandLayout(0, MMA, 2)
    PARTS: gl.constexpr = T if NVFP4 else 2 * T
    words: gl.constexpr = gl.BlockedLayout([1, PARTS, 1, 1, 4], [1, 1, 8, 4, 1], [W, 1, 1, 1, 1], [4, 3, 2, 1, 0])
    own = slot_words.reshape([W, PARTS, 8, 4, 4]).load(words)
    if NVFP4:
        pairs: gl.constexpr = gl.BlockedLayout([1, T, 1, 1, 2], [1, 1, 8, 4, 1], [W, 1, 1, 1, 1], [4, 3, 2, 1, 0])
        scales = slot_scales.reshape([W, T, 8, 2]).load(gl.SliceLayout(3, pairs))
        a = nvfp4_tile(own, scales, operand, W, T)
    else:
        a = fp8_tile(own, operand, W, T)
    if SCALED == 3:
        part = mma_v2(a, b, gl.zeros_like(acc))
        place = panel + gl.arange(0, 16 * W, layout=gl.SliceLayout(1, MMA)) // 16
        blocks = (K + 127) // 128
        by = gl.load(factors + place.to(gl.int64) * blocks + k // 128, mask=place < num_panels, other=0.0)
        by, part = gl.broadcast(by[:, None], part)
        return gl.fma(by, part, acc)
    return mma_v2(a, b, acc)


@gluon.jit
def finished(acc, factors, bias, output, there, SCALED: gl.constexpr, BIASED: gl.constexpr):
    if SCALED == 1 or SCALED == 2:
        by, _ = gl.broadcast(gl.load(factors + output, mask=there, other=1.0)[:, None], acc)
        acc = acc * by if SCALED == 1 else gl.div_rn(acc, by)
    if BIASED:
        acc += gl.load(bias + output, mask=there, other=0.0)[:, None]
    return acc


@gluon.jit(do_not_specialize=["num_rows"])
def packed_rows(
    x, words, scales, factors, bias, y, num_rows, N, K,
    NVFP4: gl.constexpr, SCALED: gl.constexpr, GATED: gl.constexpr, BIASED: gl.constexpr, ADDED: gl.constexpr,
    ROWS: gl.constexpr, W: gl.constexpr, T: gl.constexpr, S: gl.constexpr,
):  # fmt: skip
    """W warps do W panels (GATED: of gate and of up) for ROWS rows; S copies of T tiles are on their way at a time."""
    WIDTH: gl.constexpr = 64 * T
    PER_TILE: gl.constexpr = 128 if NVFP4 else 256
    MMA: gl.constexpr = gl.NVMMADistributedLayout(version=[2, 0], warps_per_cta=[W, 1], instr_shape=[16, 8])
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    HALVES: gl.constexpr = 2 if GATED else 1
    ring = gl.allocate_shared_memory(gl.int32, [S * HALVES, W, T * PER_TILE], flat)
    SCALES: gl.constexpr = T * 16 if NVFP4 else 4
    scale_ring = gl.allocate_shared_memory(gl.int32, [S * HALVES, W, SCALES], flat)
    x_ring = gl.allocate_shared_memory(gl.bfloat16, [S, ROWS, WIDTH], gl.SwizzledSharedLayout(8, 1, 8, [1, 0]))
    panel, first_row = gl.program_id(0) * W, gl.program_id(1) * ROWS
    num_panels, num_tiles = (N + 15) // 16, (K + 63) // 64
    steps = (num_tiles + T - 1) // T
    gdc_launch_dependents()
    for i in gl.static_range(S - 1):
        for half in gl.static_range(HALVES):
            copy_codes(
                words, scales, ring.index(i * HALVES + half), scale_ring.index(i * HALVES + half),
                panel + half * num_panels, num_panels * (half + 1), i * T, num_tiles, NVFP4, W, T,
            )  # fmt: skip
        async_copy.commit_group()
    gdc_wait()
    for i in gl.static_range(S - 1):
        copy_x(x, x_ring.index(i), first_row, num_rows, i * WIDTH, K, ROWS, WIDTH, W)
        async_copy.commit_group()
    acc = gl.full([16 * W, ROWS], 0.0, gl.float32, layout=MMA)
    up = gl.full([16 * W, ROWS], 0.0, gl.float32, layout=MMA)
    slot, free = 0, S - 1
    for i in range(steps):
        async_copy.wait_group(S - 2)
        gl.thread_barrier()
        for half in gl.static_range(HALVES):
            copy_codes(
                words, scales, ring.index(free * HALVES + half), scale_ring.index(free * HALVES + half),
                panel + half * num_panels, num_panels * (half + 1), (i + S - 1) * T, num_tiles, NVFP4, W, T,
            )  # fmt: skip
        copy_x(x, x_ring.index(free), first_row, num_rows, (i + S - 1) * WIDTH, K, ROWS, WIDTH, W)
        async_copy.commit_group()
        b = x_ring.index(slot).permute([1, 0]).load(gl.DotOperandLayout(1, MMA, 2))
        at = slot * HALVES
        acc = multiplied(
            acc, ring.index(at), scale_ring.index(at), b, factors, panel, num_panels, i * WIDTH, K, NVFP4, SCALED, W, T
        )
        if GATED:
            up = multiplied(
                up, ring.index(at + 1), scale_ring.index(at + 1), b, factors, panel + num_panels, 2 * num_panels,
                i * WIDTH, K, NVFP4, SCALED, W, T,
            )  # fmt: skip
        slot = gl.where(slot == S - 1, 0, slot + 1)
        free = gl.where(free == S - 1, 0, free + 1)
    async_copy.wait_group(0)
    output = panel * 16 + gl.arange(0, 16 * W, layout=gl.SliceLayout(1, MMA))
    row = first_row + gl.arange(0, ROWS, layout=gl.SliceLayout(0, MMA))
    there = output < N
    acc = finished(acc, factors, bias, output, there, SCALED, BIASED)
    if GATED:
        up = finished(up, factors + N, bias + N if BIASED else bias, output, there, SCALED, BIASED)
        g, u = acc.to(x.dtype.element_ty).to(gl.float32), up.to(x.dtype.element_ty).to(gl.float32)
        ones = gl.zeros_like(g) + 1.0
        acc = gl.div_rn(g, ones + gl.exp2(g * -1.4426950408889634)) * u
    at_y = y + row.to(gl.int64)[None, :] * N + output[:, None]
    mask = there[:, None] & (row < num_rows)[None, :]
    if ADDED:
        acc += gl.load(at_y, mask=mask, other=0.0)
    gl.store(at_y, acc.to(y.dtype.element_ty), mask=mask)


def run_packed(x: Any, weight: Any, y: Any, way: Packed, bias: Any, added: bool, gated: bool) -> Any:
    """Fill y, or add to it."""
    rows, columns = y.shape
    nvfp4, scaled = weight.kind == "nvfp4", weight.scaled
    scales = weight.scales if nvfp4 else weight.words
    factors = weight.factors_of_chain
    grid = (triton.cdiv(triton.cdiv(columns, 16), way.panels), triton.cdiv(rows, way.rows))
    packed_rows[grid](
        x, weight.words, scales, factors, bias if bias is not None else factors, y, rows, columns, x.shape[1],
        nvfp4, scaled, gated, bias is not None, added, way.rows, way.panels, way.tiles, way.copies,
        num_warps=way.panels, **EXACT,
    )  # fmt: skip
    return y
