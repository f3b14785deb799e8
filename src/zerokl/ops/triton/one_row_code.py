"""Assembly of `one_row.py`: what one thread does with its words. Registers are named, since nothing may move between.

numbers     16 k of a panel: one word of NVFP4 or two of FP8 -> the four registers that the matrix unit takes
copies      a thread copies to shared memory what it alone will read; scales go through their warp
products    64 outputs by 16 k by one row, in order; all of a block's numbers are there before its first product
"""

from __future__ import annotations

from functools import cache

REGISTERS = """{
.reg .b16 lo, hi;
.reg .b32 s, t, f, g;
.reg .f32 c<4>;
.reg .b64 d;
.reg .pred p;
"""
SUMS = "=f,=f,=f,=f"
PRODUCT = "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {{{sums}}}, {{{numbers}}}, d, 1, 1, 1, 0;"


def nvfp4_numbers(word: str, scales: tuple[str, str], step: int, to: tuple[str, str, str, str]) -> str:
    """`scales`: of outputs g and g + 8, a byte for each of four steps; `packed.PLACES` has the shifts."""
    return f"""
prmt.b32 s, {scales[0]}, {scales[1]}, 0x{4 + step}{4 + step}{step}{step};
mov.b32 f, 0x70007000;
lop3.b32 s, s, 0x0FF00FF0, f, 0xEA;
mov.b32 {{lo, hi}}, s;
mov.b32 f, {{lo, lo}};
mov.b32 g, {{hi, hi}};
and.b32 {to[0]}, {word}, 0x81C081C0;
shl.b32 s, {word}, 3;
and.b32 {to[2]}, s, 0x81C081C0;
shl.b32 s, {word}, 6;
shl.b32 t, {word}, 2;
and.b32 s, s, 0x01C001C0;
lop3.b32 {to[1]}, t, 0x80008000, s, 0xEA;
shr.u32 s, {word}, 3;
shl.b32 t, {word}, 1;
and.b32 s, s, 0x01C001C0;
lop3.b32 {to[3]}, t, 0x80008000, s, 0xEA;
mul.rn.bf16x2 {to[0]}, {to[0]}, f;
mul.rn.bf16x2 {to[1]}, {to[1]}, g;
mul.rn.bf16x2 {to[2]}, {to[2]}, f;
mul.rn.bf16x2 {to[3]}, {to[3]}, g;
"""


def fp8_numbers(word: str, to: tuple[str, str]) -> str:
    """Of one output: k + 0, 1 and k + 8, 9. The bits as bfloat16 are 2^-120 of the number."""
    return f"""
and.b32 {to[0]}, {word}, 0x87F087F0;
shl.b32 s, {word}, 4;
shr.u32 t, {word}, 4;
and.b32 s, s, 0x80F080F0;
lop3.b32 {to[1]}, t, 0x07000700, s, 0xEA;
mov.b32 f, 0x7B807B80;
mul.rn.bf16x2 {to[0]}, {to[0]}, f;
mul.rn.bf16x2 {to[1]}, {to[1]}, f;
"""


def names(tile: int, step: int) -> tuple[str, str, str, str]:
    """Of a step's registers: outputs g, g + 8 with k + 0, 1, then with k + 8, 9."""
    first, second, third, fourth = (f"a{tile}_{4 * step + i}" for i in range(4))
    return first, second, third, fourth


def numbers_of(nvfp4: bool, tile: int, step: int) -> str:
    to = names(tile, step)
    if nvfp4:
        return nvfp4_numbers(f"w{tile}_{step}", (f"h{tile}_0", f"h{tile}_1"), step, to)
    first = 4 * (step // 2) + 2 * (step % 2)
    return fp8_numbers(f"w{tile}_{first}", (to[0], to[2])) + fp8_numbers(f"w{tile}_{first + 1}", (to[1], to[3]))


def copies(nvfp4: bool, tiles: int, to: tuple[str, str], source: tuple[str, str], wanted: str) -> str:
    """Of words and scales; `wanted`: bit 0 the words, bit 1 the scales."""
    text = f"and.b32 s, {wanted}, 1;\nsetp.ne.b32 p, s, 0;\n"
    for i in range(tiles if nvfp4 else 2 * tiles):
        text += f"@p cp.async.cg.shared.global.L2::256B [{to[0]}+{512 * i}], [{source[0]}+{512 * i}], 16;\n"
    if nvfp4:
        text += f"and.b32 s, {wanted}, 2;\nsetp.ne.b32 p, s, 0;\n"
        text += f"@p cp.async.cg.shared.global [{to[1]}], [{source[1]}], 16;\n"
    return text + "cp.async.commit_group;\n"


def loads(nvfp4: bool, tiles: int, words: str, scales: str) -> str:
    """Back to registers."""
    parts, text = 1 if nvfp4 else 2, ""
    for i in range(tiles):
        text += f".reg .b32 w{i}_<{4 * parts}>, h{i}_<2>, a{i}_<16>;\n"
        for part in range(parts):
            own = ", ".join(f"w{i}_{4 * part + step}" for step in range(4))
            text += f"ld.shared.v4.b32 {{{own}}}, [{words}+{512 * (parts * i + part)}];\n"
        if nvfp4:
            text += f"ld.shared.v2.b32 {{h{i}_0, h{i}_1}}, [{scales}+{64 * i}];\n"
    return text


def product(tile: int, step: int, sums: str, x: str) -> str:
    place = f"add.u64 d, {x}, {8 * tile + 2 * step};\n"
    return place + PRODUCT.format(sums=sums, numbers=", ".join(names(tile, step))) + "\n"


@cache
def copy_block(nvfp4: bool, tiles: int) -> str:
    """-> nothing; to (words, scales), from (words, scales), wanted."""
    return REGISTERS + copies(nvfp4, tiles, ("$1", "$2"), ("$3", "$4"), "$5") + "mov.b32 $0, 0;\n}"


COPY_BLOCK = "=r,r,r,l,l,r"


@cache
def step_block(nvfp4: bool, tiles: int, places: int) -> str:
    """sums -> sums; own words, scales; then what `copy_block` has; x.

    A tile's numbers are made while the products of the one ahead are on their way. Their registers can't be written
    then, and are named once per block: so it has three tiles at least.
    """
    text = REGISTERS + f"cp.async.wait_group {places - 2};\nbar.warp.sync 0xffffffff;\n"
    text += copies(nvfp4, tiles, ("$10", "$11"), ("$12", "$13"), "$14") + loads(nvfp4, tiles, "$8", "$9")
    for tile in range(tiles):
        text += "".join(numbers_of(nvfp4, tile, step) for step in range(4))
        text += "wgmma.wait_group.sync.aligned 1;\nwgmma.fence.sync.aligned;\n"
        text += "".join(product(tile, step, "$0, $1, $2, $3", "$15") for step in range(4))
        text += "wgmma.commit_group.sync.aligned;\n"
    return text + "}"


STEP_BLOCK = f"{SUMS},0,1,2,3,r,r,r,r,l,l,r,l"


@cache
def turn_block(nvfp4: bool, tiles: int, places: int) -> str:
    """-> nothing; own words, scales; then what `copy_block` has; x; where the sums lie; own and other barrier.

    Two teams take turns: one makes its block's numbers while the other multiplies, and sums go from one to the other.
    """
    text = REGISTERS + f"cp.async.wait_group {places - 2};\nbar.warp.sync 0xffffffff;\n"
    text += copies(nvfp4, tiles, ("$3", "$4"), ("$5", "$6"), "$7") + loads(nvfp4, tiles, "$1", "$2")
    text += "".join(numbers_of(nvfp4, tile, step) for tile in range(tiles) for step in range(4))
    text += "bar.sync $10, 256;\n"
    text += "ld.shared.v4.f32 {c0, c1, c2, c3}, [$9];\nwgmma.fence.sync.aligned;\n"
    text += "".join(product(tile, step, "c0, c1, c2, c3", "$8") for tile in range(tiles) for step in range(4))
    text += "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n"
    return text + "st.shared.v4.f32 [$9], {c0, c1, c2, c3};\nbar.arrive $11, 256;\nmov.b32 $0, 0;\n}"


TURN_BLOCK = "=r,r,r,r,r,l,l,r,l,r,r,r"


@cache
def x_block(parts: int, threads: int) -> str:
    """-> nothing; to, from, bytes from this thread's place on: all loads, then all stores."""
    text, stride = "{\n.reg .pred p;\n" + f".reg .b32 v<{4 * parts}>;\n", 16 * threads
    own = [", ".join(f"v{4 * i + j}" for j in range(4)) for i in range(parts)]
    for i in range(parts):
        text += f"setp.gt.s32 p, $3, {stride * i};\n@p ld.global.v4.b32 {{{own[i]}}}, [$2+{stride * i}];\n"
    for i in range(parts):
        text += f"setp.gt.s32 p, $3, {stride * i};\n@p st.shared.v4.b32 [$1+{stride * i}], {{{own[i]}}};\n"
    return text + "mov.b32 $0, 0;\n}"


X_BLOCK = "=r,r,l,r"
