"""A gated chain for many rows: as many programs as processors, each of which takes tile after tile.

What a library can't do in one: gate and up are two accumulators of one program, so their products are never stored and
read again. Tiles come and go by bulk copies; neighbours in time share rows of x, so that these stay in the L2 cache.

Maths, rounding, order: those of `chain.py`, gated. The tiles must fit: columns a multiple of 128, depth of 64.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from zerokl.ops.choices import Persistent
from zerokl.ops.triton.chain import scaled
from zerokl.ops.triton.numbers import EXACT, begin
from zerokl.ops.triton.swiglu import gate


@triton.jit(do_not_specialize=["num_rows"])
def gated_tiles(
    x, w, factors, y, num_rows, N, K,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, BAND: tl.constexpr, PROGRAMS: tl.constexpr,
    SCALED: tl.constexpr,
):  # fmt: skip
    begin()
    tiles_down, tiles_across = tl.cdiv(num_rows, ROWS), tl.cdiv(N, COLUMNS)
    for tile in tl.range(tl.program_id(0), tiles_down * tiles_across, PROGRAMS):
        band = tile // (BAND * tiles_across)  # BAND rows of tiles, column by column
        height = min(tiles_down - band * BAND, BAND)
        place = tile % (BAND * tiles_across)
        row, column = (band * BAND + place % height) * ROWS, place // height * COLUMNS
        acc = tl.zeros([ROWS, COLUMNS], tl.float32)
        up = tl.zeros([ROWS, COLUMNS], tl.float32)
        for k in range(0, K, DEPTH):
            xt = x.load([row, k])
            acc = tl.dot(xt, w.load([column, k]).T, acc)
            up = tl.dot(xt, w.load([N + column, k]).T, up)
        if SCALED:
            own = factors + column + tl.arange(0, COLUMNS)
            acc, up = scaled(acc, tl.load(own), SCALED), scaled(up, tl.load(own + N), SCALED)
        acc = gate(acc.to(y.dtype).to(tl.float32), up.to(y.dtype).to(tl.float32))
        y.store([row, column], acc.to(y.dtype))


def run_persistent(x: Any, w: Any, y: Any, way: Persistent, factors: Any = None, mode: int = 0) -> Any:
    """Fill y; factors as in `run_chain`."""
    (rows, depth), columns = x.shape, y.shape[1]
    operands = blocks(x, way.rows, way.depth), blocks(w, way.columns, way.depth), blocks(y, way.rows, way.columns)
    tiles = triton.cdiv(rows, way.rows) * triton.cdiv(columns, way.columns)
    programs = min(tiles, processors(str(x.device)))
    gated_tiles[(programs,)](
        *operands[:2], factors, operands[2], rows, columns, depth, way.rows, way.columns, way.depth, way.band, programs,
        mode,
        num_warps=way.warps, num_stages=way.stages, **EXACT,
    )  # fmt: skip
    return y


def blocks(matrix: Any, rows: int, columns: int) -> TensorDescriptor:
    return TensorDescriptor(matrix, list(matrix.shape), list(matrix.stride()), [rows, columns])


@cache
def processors(device: str) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
