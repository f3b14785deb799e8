"""The five-bit blocks and the K family of GGUF's block types: what each stored value stands for.

    Q5_0   32 values in  22 bytes   f16 d, 32 fifth bits, 16 bytes of nibbles        d * (q - 16)
    Q5_1   32 values in  24 bytes   f16 d, f16 m, then as Q5_0                       d * q + m
    Q2_K  256 values in  84 bytes   16 pairs of four bits, two-bit q, f16 d, least   (d * scale) * q - least * offset
    Q3_K  256 values in 110 bytes   third bits, two-bit q, 16 scales of six bits, d  (d * (scale - 32)) * (q - 4)
    Q4_K  256 values in 144 bytes   f16 d, f16 least, 8 pairs of six bits, nibbles   (d * scale) * q - least * offset
    Q5_K  256 values in 176 bytes   as Q4_K, with a plane of fifth bits              the same
    Q6_K  256 values in 210 bytes   nibbles, pairs of high bits, 16 scales, f16 d    (d * scale) * (q - 32)

Every product is exact in float32, so only the sums round, once.

    Q4_K's nibbles    bytes 0..31: groups 0 (low) and 1 (high), bytes 32..63: groups 2 and 3, ... (8 of 32)
    Q2_K's, Q3_K's    bytes 0..31: the four pairs of bits of byte b are values b, 32 + b, 64 + b, 96 + b; then 128..255
    Q3_K's third bits bit g of byte b is that of value 32 g + b
    Q6_K's            bytes 0..63: values 0..63 (low) and 64..127 (high), then the same for 128..255
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Blocks = NDArray[np.void]
Values = NDArray[np.float32]
Bytes = NDArray[np.uint8]


def q5_0(blocks: Blocks, out: Values) -> None:
    _five_bits(blocks, out)
    out -= np.float32(16)
    out *= _column(blocks["d"])


def q5_1(blocks: Blocks, out: Values) -> None:
    _five_bits(blocks, out)
    out *= _column(blocks["d"])
    out += _column(blocks["m"])


def q2_k(blocks: Blocks, out: Values) -> None:
    scales = (blocks["s"] & 15).astype(np.float32)
    offsets = (blocks["s"] >> 4).astype(np.float32)
    values = out.reshape(-1, 16, 16)
    values[:] = _groups_of_pairs(blocks["q"])
    values *= (_column(blocks["d"]) * scales)[:, :, None]
    values -= (_column(blocks["least"]) * offsets)[:, :, None]


def q3_k(blocks: Blocks, out: Values) -> None:
    third = (blocks["h"][:, None, :] >> np.arange(8, dtype=np.uint8)[:, None] & np.uint8(1)).reshape(-1, 16, 16)
    values = out.reshape(-1, 16, 16)
    values[:] = _groups_of_pairs(blocks["q"]) | third << np.uint8(2)
    values -= np.float32(4)
    values *= (_column(blocks["d"]) * (_sixteen_of_six_bits(blocks["s"]) - np.float32(32)))[:, :, None]


def q4_k(blocks: Blocks, out: Values) -> None:
    _scaled_groups(blocks, _groups_of_nibbles(blocks["q"]), out)


def q5_k(blocks: Blocks, out: Values) -> None:
    fifth = blocks["h"][:, None, :] >> np.arange(8, dtype=np.uint8)[:, None] & np.uint8(1)
    _scaled_groups(blocks, _groups_of_nibbles(blocks["q"]) | fifth << np.uint8(4), out)


def q6_k(blocks: Blocks, out: Values) -> None:
    halves = blocks["q"].reshape(-1, 2, 64)
    low = np.stack([halves & 15, halves >> 4], axis=2).reshape(-1, 2, 4, 32)
    pairs = blocks["h"].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None] & np.uint8(3)
    values = out.reshape(-1, 16, 16)
    values[:] = (low | pairs << np.uint8(4)).reshape(-1, 16, 16)
    values -= np.float32(32)
    values *= (_column(blocks["d"]) * blocks["s"].astype(np.float32))[:, :, None]


def _five_bits(blocks: Blocks, out: Values) -> None:
    np.bitwise_and(blocks["q"], 15, out=out[:, :16], casting="unsafe")
    np.right_shift(blocks["q"], 4, out=out[:, 16:], casting="unsafe")
    out += np.unpackbits(blocks["h"], axis=1, bitorder="little").astype(np.float32) * np.float32(16)


def _groups_of_nibbles(packed: Bytes) -> Bytes:
    """[n, 128] -> [n, 8 groups, 32]"""
    rows = packed.reshape(-1, 4, 32)
    return np.stack([rows & 15, rows >> 4], axis=2).reshape(-1, 8, 32)


def _scaled_groups(blocks: Blocks, quants: Bytes, out: Values) -> None:
    scales, offsets = _six_bit_pairs(blocks["s"])
    values = out.reshape(-1, 8, 32)
    values[:] = quants
    values *= (_column(blocks["d"]) * scales)[:, :, None]
    values -= (_column(blocks["least"]) * offsets)[:, :, None]


def _groups_of_pairs(packed: Bytes) -> Bytes:
    """[n, 64] -> [n, 16 groups, 16]"""
    planes = packed.reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None] & np.uint8(3)
    return planes.reshape(-1, 16, 16)


def _sixteen_of_six_bits(packed: Bytes) -> Values:
    """[n, 12] -> [n, 16]: bytes 0..7 hold low four bits, low nibbles first; 8..11 high two bits, in planes."""
    low = np.concatenate([packed[:, :8] & 15, packed[:, :8] >> 4], axis=1)
    high = packed[:, None, 8:] >> np.array([0, 2, 4, 6], np.uint8)[:, None] & np.uint8(3)
    values: Values = (low | high.reshape(-1, 16) << np.uint8(4)).astype(np.float32)
    return values


def _six_bit_pairs(packed: Bytes) -> tuple[Values, Values]:
    """[n, 12] -> scales [n, 8], offsets [n, 8].

    Bytes 0..3 hold scales 0..3 in their low six bits, bytes 4..7 offsets 0..3; bytes 8..11 the low four bits of scales
    and offsets 4..7, whose high two bits are the ones left in bytes 0..7.
    """
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([first & 63, third & 15 | first >> 6 << 4], axis=1)
    offsets = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=1)
    return scales.astype(np.float32), offsets.astype(np.float32)


def _column(halves: Any) -> Values:
    column: Values = halves.astype(np.float32)[:, None]
    return column
