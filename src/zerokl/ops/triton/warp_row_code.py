"""Assembly of `warp_row.py`: what one warp does for 16 outputs of one side, a leaf, gate or up, and how sides meet.

chain   first copies of codes | wait for the kernel ahead, copy x | place after place: ask for the next, numbers of its
        words, x from shared memory, the matrix unit
meet    every side's sums to shared memory; of each output all sides from there, leaves by the tree
"""

from __future__ import annotations

from functools import cache

from zerokl.ops.triton.one_row_code import copies, loads, names, numbers_of

SUMS = "{$0, $1, $2, $3}"
PRODUCT = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {sums}, {{{numbers}}}, {{{x}}}, {sums};\n"


@cache
def chain(nvfp4: bool, depth: int, leaves: int, tiles: int, places: int, threads: int) -> str:
    """sums, residual <- thread, leaf (gated: 0), lane, x, words, scales (a leaf's), residual, whether it is wanted.

    `depth`: of all leaves together; a leaf has whole copies of `tiles`. Shared memory: x | per warp: places. Every
    column of the matrix unit's right operand is x; a thread's first and third sum are of the first column, if it is the
    first of four.
    """
    tile, place, blocks = 512 if nvfp4 else 1024, place_bytes(nvfp4, tiles), depth // leaves // 64 // tiles
    text = f"""{{
.reg .b16 lo, hi;
.reg .b32 s, t, f, g, left, base, own_x, read, write, some, wanted, to_words, to_scales, own_words, own_scales, b<4>;
.reg .b64 words, scales, from;
.reg .pred p;
mov.u32 base, global_smem;
shr.u32 s, $5, 5;
mad.lo.u32 read, s, {places * place}, base;
add.u32 read, read, {2 * depth};
mov.b64 words, $9;
mov.b64 scales, $10;
setp.lt.u32 p, $7, {4 * tiles};
selp.b32 some, 3, 1, p;
mad.lo.u32 to_words, $7, 16, read;
add.u32 to_scales, to_words, {tiles * tile};
shr.u32 s, $7, 2;
mad.lo.u32 own_scales, s, 8, read;
add.u32 own_scales, own_scales, {tiles * tile};
"""
    next_copy = f"add.u64 words, words, {tiles * tile};\nadd.u64 scales, scales, {tiles * 64};\n"
    for i in range(places - 1):
        text += f"mov.b32 wanted, {'some' if i < blocks else '0'};\nadd.u32 s, to_words, {i * place};\n"
        text += f"add.u32 t, to_scales, {i * place};\nmov.b32 f, s;\n"
        text += copies(nvfp4, tiles, ("f", "t"), ("words", "scales"), "wanted") + next_copy
    text += "griddepcontrol.wait;\nmov.b32 $4, 0;\nsetp.ne.s32 p, $12, 0;\n@p ld.global.b32 $4, [$11];\n"
    text += copied_x(depth, threads) + "bar.sync 0;\n"
    text += f"mad.lo.u32 own_x, $6, {2 * depth // leaves}, base;\nshr.u32 s, $7, 3;\nmad.lo.u32 own_x, s, 16, own_x;\n"
    text += "".join(f"mov.b32 ${i}, 0f00000000;\n" for i in range(4))
    text += f"mov.u32 left, {blocks};\nmov.u32 read, 0;\nmov.u32 write, {(places - 1) * place};\nPLACES:\n"
    text += f"cp.async.wait_group {places - 2};\nbar.warp.sync 0xffffffff;\n"
    text += f"setp.gt.u32 p, left, {places - 1};\nselp.b32 wanted, some, 0, p;\n"
    text += "add.u32 f, to_words, write;\nadd.u32 t, to_scales, write;\n"
    text += copies(nvfp4, tiles, ("f", "t"), ("words", "scales"), "wanted") + next_copy
    text += "add.u32 f, to_words, read;\nadd.u32 t, own_scales, read;\n" + loads(nvfp4, tiles, "f", "t")
    for i in range(tiles):
        for step in range(4):
            if step % 2 == 0:
                at = 128 * i + 32 * step
                text += f"ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{b0, b1, b2, b3}}, [own_x+{at}];\n"
            x = "b0, b1" if step % 2 == 0 else "b2, b3"
            text += numbers_of(nvfp4, i, step) + PRODUCT.format(sums=SUMS, numbers=", ".join(names(i, step)), x=x)
    text += f"mov.u32 write, read;\nadd.u32 read, read, {place};\nsetp.eq.u32 p, read, {places * place};\n"
    text += f"selp.b32 read, 0, read, p;\nadd.u32 own_x, own_x, {128 * tiles};\nsub.u32 left, left, 1;\n"
    return text + "setp.ne.u32 p, left, 0;\n@p bra PLACES;\n}"


CHAIN = "=&f,=&f,=&f,=&f,=&r,r,r,r,l,l,l,l,r"


def place_bytes(nvfp4: bool, tiles: int) -> int:
    """Of a copy: words, then scales."""
    return tiles * (576 if nvfp4 else 1024)


def copied_x(depth: int, threads: int) -> str:
    """By all threads, 16 bytes a time: all loads, then all stores."""
    parts, stride = -(-2 * depth // (16 * threads)), 16 * threads
    text = f".reg .b32 v<{4 * parts}>, to, rest;\nshl.b32 s, $5, 4;\ncvt.u64.u32 from, s;\nadd.u64 from, from, $8;\n"
    text += f"add.u32 to, base, s;\nsub.u32 rest, {2 * depth}, s;\n"
    for order in ("ld.global.v4.b32 {{{own}}}, [from+{at}];\n", "st.shared.v4.b32 [to+{at}], {{{own}}};\n"):
        for i in range(parts):
            own = ", ".join(f"v{4 * i + j}" for j in range(4))
            text += f"setp.gt.s32 p, rest, {stride * i};\n@p " + order.format(own=own, at=stride * i)
    return text


@cache
def meet(sides: int, gated: bool) -> str:
    """-> of an output the tree over its leaves, or gate and up; two sums of a side, where they go, whether they do;
    where the output's first side lies.
    """
    text = "{\n.reg .pred p;\n" + f".reg .f32 s<{max(2, sides)}>;\n"
    text += "setp.ne.s32 p, $5, 0;\n@p st.shared.f32 [$4], $2;\n@p st.shared.f32 [$4+32], $3;\nbar.sync 0;\n"
    text += "".join(f"ld.shared.f32 s{side}, [$6+{64 * side}];\n" for side in range(sides))
    apart = 1 if not gated else sides
    while apart < sides:
        for side in range(0, sides, 2 * apart):
            text += f"add.rn.f32 s{side}, s{side}, s{side + apart};\n"
        apart *= 2
    return text + f"mov.f32 $0, s0;\nmov.f32 $1, s{int(gated)};\n}}"


MEET = "=&f,=&f,f,f,r,r,r"
