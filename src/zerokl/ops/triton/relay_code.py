"""Assembly of `relay.py`: the two roles of its warps, as one block.

multiply    four warps: wait for the kernel ahead, copy x, then 64 outputs by 16 k by one row, in order; a tile comes
            from shared memory while the products of the one ahead are on their way
unpack      four or eight warps, each a tile of 64 k of a stage, of all panels: codes from memory, numbers, stores that
            lie as the multiplying warps' threads want them
"""

from __future__ import annotations

from functools import cache

from zerokl.ops.triton.one_row_code import names, numbers_of

TILES = 4
"""Of a stage, one for each warp that unpacks."""
STAGES = 4
"""Of numbers. A barrier for each of those that are full, and that are empty."""
NUMBERS = 2048
"""Bytes of a panel's tile of numbers."""
AHEAD = 4
"""Stages whose codes are on their way to registers."""
X_COPIED, FULL, EMPTY = 1, 2, 2 + STAGES
PRODUCT = "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {{$0, $1, $2, $3}}, {{{numbers}}}, d, 1, 1, 1, 0;\n"


@cache
def roles(nvfp4: bool, depth: int, panels: int, groups: int) -> str:
    """sums, two residuals <- warp, lane, x, words, scales, residual (from), whether it is wanted.

    Shared memory: x, 128 bytes that nobody means | numbers. A warp without a panel multiplies the first's.
    """
    at_numbers = 2 * depth + 128
    text = """{
.reg .b16 lo, hi;
.reg .b32 s, t, f, g, warp, base, own, to, left, x, there;
.reg .b64 d, from, scales;
.reg .pred p, q, more, later;
mov.u32 base, global_smem;
mov.b32 $4, 0;
mov.b32 $5, 0;
shfl.sync.idx.b32 warp, $6, 0, 31, 0xffffffff;
setp.ge.s32 p, warp, 4;
@p bra UNPACK;
"""
    text += multiply(depth, panels, at_numbers) + "bra END;\nUNPACK:\n"
    return text + unpack(nvfp4, depth, panels, groups, at_numbers) + "END:\n}"


ROLES = "=&f,=&f,=&f,=&f,=&r,=&r,r,r,l,l,l,l,r"


def multiply(depth: int, panels: int, at_numbers: int) -> str:
    text = "griddepcontrol.wait;\n"
    text += "setp.ne.s32 p, $12, 0;\n@p ld.global.b32 $4, [$11];\n@p ld.global.b32 $5, [$11+32];\n"
    text += copied_x(depth)
    text += f"fence.proxy.async.shared::cta;\nbar.sync {X_COPIED}, 128;\n"
    text += f"""setp.lt.s32 p, warp, {panels};
shl.b32 t, $7, 4;
mad.lo.u32 own, warp, {NUMBERS}, t;
selp.b32 own, own, 0, p;
add.u32 own, own, base;
shr.u32 x, base, 4;
add.u32 x, x, 0x00010000;
"""
    text += "".join(f"mov.b32 ${i}, 0f00000000;\n" for i in range(4))
    text += "".join(f".reg .b32 a{i}_<16>;\n" for i in range(TILES))
    text += f"mov.u32 left, {depth // (64 * TILES * STAGES)};\nbar.sync {FULL}, 256;\n"
    text += taken(0, panels, at_numbers) + "PRODUCTS:\nsetp.gt.u32 more, left, 1;\n"
    for place in range(STAGES * TILES):
        after = (place + 1) % (STAGES * TILES)
        if after % TILES == 0:
            text += ("" if after else "@more ") + f"bar.sync {FULL + after // TILES}, 256;\n"
        text += "wgmma.wait_group.sync.aligned 2;\n" + taken(after, panels, at_numbers)
        text += "wgmma.fence.sync.aligned;\n"
        for step in range(4):
            text += f"add.u32 there, x, {8 * place + 2 * step};\nmov.b64 d, {{there, 8}};\n"
            text += PRODUCT.format(numbers=", ".join(names(place % TILES, step)))
        text += "wgmma.commit_group.sync.aligned;\n"
        if after % TILES == 0:
            text += f"@more bar.arrive {EMPTY + place // TILES}, 256;\n"
    text += f"add.u32 x, x, {8 * STAGES * TILES};\nsub.u32 left, left, 1;\nsetp.ne.u32 p, left, 0;\n@p bra PRODUCTS;\n"
    return text + "wgmma.wait_group.sync.aligned 0;\n"


def taken(place: int, panels: int, at_numbers: int) -> str:
    """A tile's numbers to registers. All threads of a warp without a panel read one place, which is quick."""
    text = ""
    for step in range(4):
        numbers = ", ".join(names(place % TILES, step))
        text += f"ld.shared.v4.b32 {{{numbers}}}, [own+{at_numbers + place * panels * NUMBERS + 512 * step}];\n"
    return text


def copied_x(depth: int) -> str:
    """By 128 threads, 16 bytes a time: all loads, then all stores."""
    parts = -(-depth // 1024)
    text = f".reg .b32 v<{4 * parts}>;\nmad.lo.u32 s, $6, 32, $7;\nshl.b32 s, s, 4;\ncvt.u64.u32 from, s;\n"
    text += f"add.u64 from, from, $8;\nadd.u32 to, base, s;\nsub.u32 left, {2 * depth}, s;\n"
    for order in ("ld.global.v4.b32 {{{own}}}, [from+{at}];\n", "st.shared.v4.b32 [to+{at}], {{{own}}};\n"):
        for i in range(parts):
            own = ", ".join(f"v{4 * i + j}" for j in range(4))
            text += f"setp.gt.s32 p, left, {2048 * i};\n@p " + order.format(own=own, at=2048 * i)
    return text


def unpack(nvfp4: bool, depth: int, panels: int, groups: int, at_numbers: int) -> str:
    """Its warp's tile of every stage, or of every other one if two groups take turns."""
    text = "setp.ge.s32 p, warp, 8;\n@p bra SECOND;\n" if groups == 2 else ""
    text += unpack_in_turn(nvfp4, depth, panels, groups, 0, at_numbers)
    if groups == 2:
        text += "bra END;\nSECOND:\nsetp.ge.s32 p, warp, 12;\n@p bra END;\n"
        text += unpack_in_turn(nvfp4, depth, panels, groups, 1, at_numbers)
    return text


def unpack_in_turn(nvfp4: bool, depth: int, panels: int, groups: int, group: int, at_numbers: int) -> str:
    tile, stages = 512 if nvfp4 else 1024, depth // (64 * TILES * groups)
    text = f"""and.b32 s, warp, 3;
shl.b32 t, $7, 4;
mad.lo.u32 own, s, {panels * NUMBERS}, t;
add.u32 own, own, base;
add.u32 f, s, {group * TILES};
mad.lo.u32 t, f, {tile}, t;
cvt.u64.u32 from, t;
add.u64 from, from, $9;
shr.u32 t, $7, 2;
shl.b32 t, t, 3;
mad.lo.u32 t, f, 64, t;
cvt.u64.u32 scales, t;
add.u64 scales, scales, $10;
mov.u32 left, {stages // AHEAD};
setp.ne.u32 later, left, left;
"""
    for ahead in range(AHEAD):
        text += "".join(f".reg .b32 w{group}{ahead}{i}_<8>, h{group}{ahead}{i}_<2>;\n" for i in range(panels))
        text += asked(nvfp4, depth, panels, groups, f"{group}{ahead}", "")
    text += (
        "".join(f".reg .b32 b{group}{i}_<16>;\n" for i in range(panels))
        + f"NUMBERS{group}:\nsetp.gt.u32 more, left, 1;\n"
    )
    for ahead in range(AHEAD):
        stage = (groups * ahead + group) % STAGES
        for i in range(panels):
            text += "".join(
                named(numbers_of(nvfp4, i, step), i, f"{group}{ahead}{i}", f"{group}{i}") for step in range(4)
            )
        text += asked(nvfp4, depth, panels, groups, f"{group}{ahead}", "@more ")
        text += ("@later " if groups * ahead + group < STAGES else "") + f"bar.sync {EMPTY + stage}, 256;\n"
        for i in range(panels):
            for step in range(4):
                numbers = named(", ".join(names(i, step)), i, "", f"{group}{i}")
                at = at_numbers + (stage * TILES * panels + i) * NUMBERS + 512 * step
                text += f"st.shared.v4.b32 [own+{at}], {{{numbers}}};\n"
        text += f"bar.arrive {FULL + stage}, 256;\n"
    return (
        text
        + f"setp.eq.u32 later, left, left;\nsub.u32 left, left, 1;\nsetp.ne.u32 p, left, 0;\n@p bra NUMBERS{group};\n"
    )


def asked(nvfp4: bool, depth: int, panels: int, groups: int, to: str, when: str) -> str:
    """Words and scales of the next stage's tile, from memory to registers."""
    tile, text = 512 if nvfp4 else 1024, ""
    for i in range(panels):
        for part in range(1 if nvfp4 else 2):
            own = ", ".join(f"w{to}{i}_{4 * part + step}" for step in range(4))
            at = i * depth // 64 * tile + 512 * part
            text += f"{when}ld.global.nc.L1::no_allocate.L2::256B.v4.b32 {{{own}}}, [from+{at}];\n"
        if nvfp4:
            text += f"{when}ld.global.nc.v2.b32 {{h{to}{i}_0, h{to}{i}_1}}, [scales+{i * depth}];\n"
    return text + f"add.u64 from, from, {groups * TILES * tile};\nadd.u64 scales, scales, {groups * TILES * 64};\n"


def named(text: str, panel: int, given: str, made: str) -> str:
    """Registers of this role's own."""
    text = text.replace(f"w{panel}_", f"w{given}_").replace(f"h{panel}_", f"h{given}_")
    return text.replace(f"a{panel}_", f"b{made}_")
