"""Block types of GGUF: how each is laid out, and the exact number that each value stands for.

    Q8_0   32 values in 34 bytes   f16 d, 32 signed bytes q           d * q
    Q4_0   32 values in 18 bytes   f16 d, 16 bytes of two nibbles     d * (q - 8)
    Q4_1   32 values in 20 bytes   f16 d, f16 m, 16 bytes             d * q + m, the sum rounded once to float32

Low nibbles are values 0..15 of the block, high nibbles 16..31. A product of f16 and a small integer is exact in
float32, so a fused multiply-add would give the same bits. A new type is one function and one line of `LAYOUTS`.
`quantised_k.py` has the five-bit types and the K family, `quantised_iq4.py` the unevenly spaced ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from zerokl.checkpoints import quantised_iq4 as iq4
from zerokl.checkpoints import quantised_k as k

Blocks = NDArray[np.void]
Values = NDArray[np.float32]

CHUNK_BLOCKS = 4096
"""Blocks dequantised at a time, so that both passes over the output stay in cache (512 KB)."""


class Layout(NamedTuple):
    """One block type: `block` is its record, `dequantise(blocks [n], out [n, values])` fills float32 values."""

    values: int
    block: np.dtype[Any]
    dequantise: Callable[[Blocks, Values], None]


def q8_0(blocks: Blocks, out: Values) -> None:
    np.multiply(blocks["q"], _f32(blocks["d"]), out=out)


def q4_0(blocks: Blocks, out: Values) -> None:
    _nibbles(blocks["q"], out)
    out -= np.float32(8)
    out *= _f32(blocks["d"])


def q4_1(blocks: Blocks, out: Values) -> None:
    _nibbles(blocks["q"], out)
    out *= _f32(blocks["d"])
    out += _f32(blocks["m"])


def dequantise(layout: Layout, stored: NDArray[np.uint8]) -> Values:
    """All values of `stored`, whole blocks as bytes, in order."""
    blocks = stored.view(layout.block)
    out = np.empty((len(blocks), layout.values), np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        for start in range(0, len(blocks), CHUNK_BLOCKS):
            layout.dequantise(blocks[start : start + CHUNK_BLOCKS], out[start : start + CHUNK_BLOCKS])
    return out.reshape(-1)


def _nibbles(packed: NDArray[np.uint8], out: Values) -> None:
    np.bitwise_and(packed, 15, out=out[:, :16], casting="unsafe")
    np.right_shift(packed, 4, out=out[:, 16:], casting="unsafe")


def _f32(column: NDArray[np.float16]) -> Values:
    return column.astype(np.float32)[:, None]


def _block(*fields: tuple[str, str, int]) -> np.dtype[Any]:
    return np.dtype([(name, kind, (count,)) if count > 1 else (name, kind) for name, kind, count in fields])


LAYOUTS = {
    "Q4_0": Layout(32, _block(("d", "<f2", 1), ("q", "u1", 16)), q4_0),
    "Q4_1": Layout(32, _block(("d", "<f2", 1), ("m", "<f2", 1), ("q", "u1", 16)), q4_1),
    "Q5_0": Layout(32, _block(("d", "<f2", 1), ("h", "u1", 4), ("q", "u1", 16)), k.q5_0),
    "Q5_1": Layout(32, _block(("d", "<f2", 1), ("m", "<f2", 1), ("h", "u1", 4), ("q", "u1", 16)), k.q5_1),
    "Q8_0": Layout(32, _block(("d", "<f2", 1), ("q", "i1", 32)), q8_0),
    "Q2_K": Layout(256, _block(("s", "u1", 16), ("q", "u1", 64), ("d", "<f2", 1), ("least", "<f2", 1)), k.q2_k),
    "Q3_K": Layout(256, _block(("h", "u1", 32), ("q", "u1", 64), ("s", "u1", 12), ("d", "<f2", 1)), k.q3_k),
    "Q4_K": Layout(256, _block(("d", "<f2", 1), ("least", "<f2", 1), ("s", "u1", 12), ("q", "u1", 128)), k.q4_k),
    "Q5_K": Layout(
        256, _block(("d", "<f2", 1), ("least", "<f2", 1), ("s", "u1", 12), ("h", "u1", 32), ("q", "u1", 128)), k.q5_k
    ),
    "Q6_K": Layout(256, _block(("q", "u1", 128), ("h", "u1", 64), ("s", "i1", 16), ("d", "<f2", 1)), k.q6_k),
    "IQ4_NL": Layout(32, _block(("d", "<f2", 1), ("q", "u1", 16)), iq4.iq4_nl),
    "IQ4_XS": Layout(256, _block(("d", "<f2", 1), ("high", "<u2", 1), ("low", "u1", 4), ("q", "u1", 128)), iq4.iq4_xs),
}
