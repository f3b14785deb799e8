"""GGUF's four-bit blocks whose sixteen values are not evenly spaced.

    IQ4_NL   32 values in  18 bytes   f16 d, 16 bytes of nibbles                     d * LEVELS[q]
    IQ4_XS  256 values in 136 bytes   f16 d, 8 scales of six bits (high two in one   (d * (scale - 32)) * LEVELS[q]
                                      word, low four in nibbles), nibbles

Low nibbles are values 0..15 of a group of 32, high nibbles 16..31. Nothing rounds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Blocks = NDArray[np.void]
Values = NDArray[np.float32]

LEVELS = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
"""Closer together around zero, where weights are."""


def iq4_nl(blocks: Blocks, out: Values) -> None:
    out[:] = _levels(blocks["q"], 1).reshape(-1, 32)
    out *= _column(blocks["d"])


def iq4_xs(blocks: Blocks, out: Values) -> None:
    low = np.stack([blocks["low"] & 15, blocks["low"] >> 4], axis=2).reshape(-1, 8)
    high = (blocks["high"][:, None] >> np.arange(0, 16, 2, dtype=np.uint16) & np.uint16(3)).astype(np.uint8)
    scales = (low | high << np.uint8(4)).astype(np.float32) - np.float32(32)
    values = out.reshape(-1, 8, 32)
    values[:] = _levels(blocks["q"], 8)
    values *= (_column(blocks["d"]) * scales)[:, :, None]


def _levels(packed: NDArray[np.uint8], groups: int) -> Values:
    """[n, groups * 16] nibbles -> [n, groups, 32]"""
    rows = packed.reshape(-1, groups, 16)
    values: Values = LEVELS[np.concatenate([rows & 15, rows >> 4], axis=2)]
    return values


def _column(halves: Any) -> Values:
    column: Values = halves.astype(np.float32)[:, None]
    return column
