"""Known answers of products with quantised weights and of narrow keys and values."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from zerokl import ops

F16_SCALES = {
    "q4_0": (18, (0,)),
    "q4_1": (20, (0, 2)),
    "q5_0": (22, (0,)),
    "q5_1": (24, (0, 2)),
    "q8_0": (34, (0,)),
    "q4_k": (144, (0, 2)),
    "q5_k": (176, (0, 2)),
    "q6_k": (210, (208,)),
}
"""Block type: its bytes, and where an f16 is."""
DEPTH, OUTPUTS, ROWS = 256, 20, 3


def quantised_answers(x: np.ndarray) -> Iterator[tuple[str, bytes]]:
    """(name, bytes) of one product per format, of one row and of several, which other kernels compute."""
    x = np.ascontiguousarray(x.reshape(-1)[: ROWS * DEPTH].reshape(ROWS, DEPTH))
    for kind in F16_SCALES:
        blocks = some_blocks(kind, OUTPUTS, DEPTH)
        for integer in (False, True):
            packed = ops.pack_blocks(blocks, kind, DEPTH, integer=integer)
            yield "linear by int8" if integer else "linear of blocks", products(x, packed)
            if not integer:
                yield "linear of blocks", ops.embedding(packed, np.array([0, OUTPUTS - 1], np.int32)).tobytes()
    codes = some_bytes(7, OUTPUTS, DEPTH)
    safe = np.where(codes & 0x7F == 0x7F, 0, codes).astype(np.uint8)
    packed = ops.pack_nvfp4(codes[:, : DEPTH // 2], safe[:, : DEPTH // 16], 0.3)
    divided = ops.pack_nvfp4(codes[:, : DEPTH // 2], safe[:, : DEPTH // 16], 3.3, divides=True)
    yield "linear of nvfp4", products(x, ops.stack([packed, divided]))
    each = np.arange(1, OUTPUTS + 1).astype(np.float32) / np.float32(7)
    for scale in (0.3, each, each[:2].reshape(1, 2)):
        yield "linear of fp8", products(x, ops.pack_fp8(safe, scale))


def products(x: np.ndarray, weight: ops.Matrix) -> bytes:
    return ops.linear(x, weight).tobytes() + ops.linear(x[:1], weight).tobytes()


def some_bytes(seed: int, rows: int, columns: int) -> np.ndarray:
    """By integer arithmetic: no library can move them."""
    z = (np.arange(rows * columns, dtype=np.uint64) + np.uint64(seed << 32)) * np.uint64(0x9E3779B97F4A7C15)
    return ((z ^ (z >> np.uint64(29))) >> np.uint64(17)).astype(np.uint8).reshape(rows, columns)


def some_blocks(kind: str, rows: int, columns: int) -> np.ndarray:
    """[rows, bytes of a row]: any codes, tame scales of both signs."""
    size, halves = F16_SCALES[kind]
    values = 256 if kind.endswith("_k") else 32
    blocks = some_bytes(len(kind) + size, rows * columns // values, size)
    for at in halves:
        blocks[:, at + 1] = blocks[:, at + 1] & 0x87 | 0x20
    return blocks.reshape(rows, -1)
