"""Quantised weights on the device: how they lie there, and their numbers as bfloat16.

    nvfp4         e2m1 * e4m3 / 128, exactly a bfloat16; the sum times (or through) a factor per output
    fp8           e4m3, exactly a bfloat16; the sum times a factor per output
    fp8_block     e4m3; sums of 128 k times a scale per 128 by 128, joined by one fma each

Division by 128 keeps scales of up to 448 within what one product of bfloat16 can do, and the factor makes up for it:
no bit of the result changes, because both are powers of two.

A panel is 16 outputs, a tile 64 k of it, a word 8 (nvfp4) or 4 (fp8) numbers that one thread of a warp feeds to the
matrix unit: outputs g and g + 8 (half), k = 16 step + 8 hi + 2 t + lo.

    nvfp4   words [panel, tile, g, t, step], scales [panel, tile, g, half] words of four bytes, one per step
    fp8     words [panel, tile, step // 2, g, t, step % 2, half]

A word of nvfp4 has a number's sign and magnitude where few shifts bring them to their places in two bfloat16 at once
(`PLACES`). A scale's byte has what two copies of it, masked, leave of a bfloat16: of its exponent the last bit and the
four ahead of that, with the fraction in between. Signs of scales, and scales of zero, have gone into the codes.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from zerokl.ops.triton.numbers import EARLY, NARROW, begin

PANEL, TILE = 16, 64
PLACES = ((15, 6), (12, 3), (13, 0), (14, 9))
"""Of pairs (half, hi): where the sign is, and the lowest of three bits."""
SUBNORMAL_SCALES = (176, 104, 112, 116, 120, 122, 124, 126)
"""Exponent + 22 and three bits of fraction, of scales below 2^-6; the first is a zero, whose scale is 1."""
SHRUNK = 128.0
"""What nvfp4's numbers are divided by."""
TILES = 4
"""Tiles of a program that unpacks. Free."""


def pack_nvfp4(codes: Any, scales: Any) -> tuple[Any, Any]:
    """uint8 [N, K/2] and [N, K/16] -> words and words of scales, int32."""
    numbers = torch.stack((codes & 15, codes >> 4), -1).reshape(*scales.shape, 16)
    flipped = numbers ^ ((scales >> 7) << 3)[..., None]
    numbers = torch.where(((scales & 127) == 0)[..., None], flipped & 8, flipped).flatten(1)
    table = [turned(code) for code in (*SUBNORMAL_SCALES, *(code + 120 for code in range(8, 128)))]
    kept = torch.tensor(table, dtype=torch.uint8, device=codes.device)[(scales & 127).int()]
    parts = padded(numbers, TILE).reshape(-1, 2, 8, numbers_in(numbers, TILE), 4, 2, 4, 2)
    parts = parts.permute(1, 5, 7, 0, 3, 2, 6, 4)  # [half, hi, lo, panel, tile, g, t, step]
    words = sum(
        placed(parts[half, hi, lo], 2 * half + hi) << 16 * lo for half in (0, 1) for hi in (0, 1) for lo in (0, 1)
    )
    bytes_of_scales = padded(kept, 4).reshape(-1, 2, 8, numbers_in(kept, 4), 4).permute(0, 3, 2, 1, 4).contiguous()
    return words.to(torch.int32).contiguous(), bytes_of_scales.view(torch.int32)


def turned(code: int) -> int:
    """Five bits of exponent, three of fraction -> the exponent's last bit, the fraction, its other bits."""
    return (code & 15) << 4 | code >> 4


def placed(codes: Any, pair: int) -> Any:
    """Four bits of one of a word's pairs, in 16."""
    codes = codes.to(torch.int64)
    sign, lowest = PLACES[pair]
    return codes >> 3 << sign | (codes & 7) << lowest


def pack_fp8(codes: Any) -> Any:
    """uint8 [N, K] -> words."""
    parts = padded(codes, TILE).reshape(-1, 2, 8, numbers_in(codes, TILE), 2, 2, 2, 4, 2)
    parts = parts.permute(8, 6, 0, 3, 4, 2, 7, 5, 1).to(
        torch.int64
    )  # [lo, hi, panel, tile, step // 2, g, t, step % 2, half]
    words = sum(
        ((low & 128) << 8 | (low & 127) << 4 | (high & 128) << 4 | (high & 112) << 8 | high & 15) << 16 * lo
        for lo, (low, high) in enumerate(parts)
    )
    return words.to(torch.int32).contiguous()


def padded(array: Any, columns: int) -> Any:
    """With zeros up to whole panels and whole groups of columns."""
    rows, width = array.shape
    return torch.nn.functional.pad(array, (0, -width % columns, 0, -rows % PANEL))


def numbers_in(array: Any, columns: int) -> int:
    return int(-(-array.shape[1] // columns))


@triton.jit
def nvfp4_scale(code):
    return (((code & 15) << 24) | ((code & 240) << 16) | 0x70000000).to(tl.float32, bitcast=True)


@triton.jit
def nvfp4_number(words, scales, SIGN: tl.constexpr, LOWEST: tl.constexpr, LO: tl.constexpr):
    half_word = words >> (16 * LO)
    number = (((half_word >> SIGN) << 31) | (((half_word >> LOWEST) & 7) << 22)).to(tl.float32, bitcast=True)
    return number * scales


@triton.jit
def fp8_number(words, HI: tl.constexpr, LO: tl.constexpr):
    code = words >> (16 * LO)
    if HI:
        sign, magnitude = code >> 11, ((code >> 8) & 112) | (code & 15)
    else:
        sign, magnitude = code >> 15, (code >> 4) & 127
    number = ((sign << 31) | (magnitude << 20)).to(tl.float32, bitcast=True)
    return number * 1.329227995784916e36  # 2^120


@triton.jit
def unpack_panel(
    words, scales, counts, out, N, K, num_tiles, panels_each,
    NVFP4: tl.constexpr, SOME: tl.constexpr, TURN: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """A program does 16 outputs, TILES tiles of k. SOME: experts that have rows; TURN: panels of each half in turn."""
    begin()
    if SOME:  # noqa: SIM102 - the load is only there for experts
        if tl.load(counts + tl.program_id(0) // panels_each) == 0:
            return
    panel, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * TILES
    g, t, inner = tl.arange(0, 8)[None, :, None, None], tl.arange(0, 4)[None, None, :, None], tl.arange(0, 4)
    if NVFP4:
        tile = first + tl.arange(0, TILES)[:, None, None, None]
        there = tile < num_tiles
        w = tl.load(words + (panel * num_tiles + tile) * 128 + g * 16 + t * 4 + inner, mask=there, other=0)
        at = scales + (panel * num_tiles + tile) * 16 + g * 2
        shift = (inner * 8)[None, None, None, :]
        low = nvfp4_scale(tl.load(at, mask=there, other=0) >> shift)
        high = nvfp4_scale(tl.load(at + 1, mask=there, other=0) >> shift)
        first_half = tl.join(
            tl.join(nvfp4_number(w, low, 15, 6, 0), nvfp4_number(w, low, 15, 6, 1)),
            tl.join(nvfp4_number(w, low, 12, 3, 0), nvfp4_number(w, low, 12, 3, 1)),
        )
        second_half = tl.join(
            tl.join(nvfp4_number(w, high, 13, 0, 0), nvfp4_number(w, high, 13, 0, 1)),
            tl.join(nvfp4_number(w, high, 14, 9, 0), nvfp4_number(w, high, 14, 9, 1)),
        )
        numbers = tl.join(first_half, second_half).permute(6, 1, 0, 3, 5, 2, 4)
    else:
        place = first * 2 + tl.arange(0, 2 * TILES)[:, None, None, None]
        there = place < 2 * num_tiles
        w = tl.load(words + (panel * num_tiles * 2 + place) * 128 + g * 16 + t * 4 + inner, mask=there, other=0)
        numbers = tl.join(
            tl.join(fp8_number(w, 0, 0), fp8_number(w, 0, 1)), tl.join(fp8_number(w, 1, 0), fp8_number(w, 1, 1))
        )
        numbers = numbers.reshape([2 * TILES, 8, 4, 2, 2, 2, 2]).permute(4, 1, 0, 3, 6, 2, 5)
    numbers = numbers.reshape([16, 64 * TILES])
    to = panel
    if TURN:
        to = panel % panels_each // TURN * (2 * TURN) + panel // panels_each * TURN + panel % TURN
    row = to * 16 + tl.arange(0, 16)
    k = first * 64 + tl.arange(0, 64 * TILES)
    inside = (row < N)[:, None] & (k < K)[None, :]
    tl.store(out + row[:, None] * K + k[None, :], numbers.to(out.dtype.element_ty), mask=inside)


def unpacked(weight: Any, counts: Any = None, turn: int = 0) -> Any:
    """[N, K] bf16: the numbers that sums are made of; of several experts one under the other, those with counts.

    `turn`: so many rows of the first half, the same of the second, the next of the first, ...
    """
    rows, columns = weight.shape
    out = torch.empty((rows, columns), dtype=NARROW, device=weight.words.device)
    num_tiles = -(-columns // TILE)
    grid, turn = (-(-rows // PANEL), triton.cdiv(num_tiles, TILES)), turn // PANEL
    nvfp4 = weight.kind == "nvfp4"
    scales = weight.scales if nvfp4 else weight.words
    some = counts is not None
    each = grid[0] // (len(counts) if some else 2)
    unpack_panel[grid](
        weight.words, scales, counts if some else weight.words, out, rows, columns, num_tiles, each, nvfp4, some, turn,
        TILES,
        num_warps=4, **EARLY,
    )  # fmt: skip
    return out
