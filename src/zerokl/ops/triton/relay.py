"""Products of one row with packed weights where the chain is long: some warps unpack, four others multiply.

The warpgroup's matrix instruction needs 17 cycles for 16 k of a chain, `mma` 25, but with its weights in registers it
keeps the arithmetic beside it waiting. So a program has only 16 to 48 outputs, one panel for a multiplying warp, and
the unpacking is spread over all four quarters of its processor; numbers go through shared memory (`relay_code.py`).

Maths, rounding, order, bits: those of `one_row.py`, for whole stages of 256 k, without bias or gate
Free        panels per program, groups of warps that unpack (admit.py)
"""

from __future__ import annotations

from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_launch_dependents

from zerokl.ops.choices import Relay
from zerokl.ops.triton import relay_code as code
from zerokl.ops.triton.numbers import EARLY
from zerokl.ops.triton.one_row import finished, loaded

ROLES = gl.constexpr(code.ROLES)
ALONE = 116 * 1024
"""Bytes of shared memory that keep a second program off a processor: two on one take twice as long (docs/log.md)."""


@gluon.jit
def relay(
    x, words, scales, factors, y, N, K,
    SCALED: gl.constexpr, ADDED: gl.constexpr, NVFP4: gl.constexpr, WARPS: gl.constexpr, PANELS: gl.constexpr,
    POOL: gl.constexpr, ROLES_TEXT: gl.constexpr,
):  # fmt: skip
    gdc_launch_dependents()
    one: gl.constexpr = gl.BlockedLayout([1, 1, 1], [1, 8, 4], [WARPS, 1, 1], [2, 1, 0])
    pool = gl.allocate_shared_memory(gl.int32, [POOL // 128, 32], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    # The compiler must see some use of it.
    pool.index(POOL // 128 - 1).store(gl.full([32], 0, gl.int32, layout=gl.BlockedLayout([1], [32], [WARPS], [0])))
    zero = gl.full([WARPS, 8, 4], 0, gl.int32, layout=one)
    w = gl.arange(0, WARPS, layout=gl.SliceLayout(1, gl.SliceLayout(2, one)))
    w = gl.expand_dims(gl.expand_dims(w, 1), 2) + zero
    g = gl.expand_dims(gl.expand_dims(gl.arange(0, 8, layout=gl.SliceLayout(0, gl.SliceLayout(2, one))), 0), 2) + zero
    t = gl.expand_dims(gl.expand_dims(gl.arange(0, 4, layout=gl.SliceLayout(0, gl.SliceLayout(0, one))), 0), 0) + zero
    panel = gl.program_id(0) * PANELS
    first, live = (panel + w) * 16 + g, (w < PANELS) & (t == 0)
    f0, f2 = loaded(factors + first, live, True), loaded(factors + first + 8, live, True)
    own = panel.to(gl.int64) * (K // 64)
    at_x, at_words = zero.to(gl.int64) + x.to(gl.int64), zero.to(gl.int64) + words.to(gl.int64)
    at_scales, at_y = zero.to(gl.int64) + scales.to(gl.int64), (y + gl.where(live, first, 0)).to(gl.int64)
    c0, _, c2, _, y0, y2 = gl.inline_asm_elementwise(
        ROLES_TEXT, ROLES,
        [w, g * 4 + t, at_x, at_words + own * (512 if NVFP4 else 1024), at_scales + own * 64, at_y,
         gl.where(live, 1, 0) if ADDED else zero],
        dtype=(gl.float32,) * 4 + (gl.int32,) * 2, is_pure=False, pack=1,
    )  # fmt: skip
    c0, c2 = finished(c0, f0, 0.0, SCALED, False), finished(c2, f2, 0.0, SCALED, False)
    if ADDED:
        c0, c2 = c0 + y0.to(gl.float32, bitcast=True), c2 + y2.to(gl.float32, bitcast=True)
    gl.store(y + first, c0.to(y.dtype.element_ty), mask=live)
    gl.store(y + first + 8, c2.to(y.dtype.element_ty), mask=live)


def pool_bytes(depth: int, way: Relay) -> int:
    """All is one piece from the first byte on: the assembly reckons with that (test_layouts.py)."""
    used = 2 * depth + 128 + code.TILES * way.panels * code.STAGES * code.NUMBERS
    return max(-(-used // 128) * 128 + 128, ALONE)


def run_relay(x: Any, weight: Any, y: Any, way: Relay, added: bool) -> Any:
    """Fill y, or add to it."""
    x = x if x.data_ptr() % 16 == 0 else x.clone()
    columns, depth, nvfp4 = y.shape[1], x.shape[1], weight.kind == "nvfp4"
    warps = 8 * way.groups
    relay[(columns // (16 * way.panels),)](
        x, weight.words, weight.scales if nvfp4 else weight.words, weight.factors, y,
        columns, depth, weight.scaled, added, nvfp4, warps, way.panels, pool_bytes(depth, way),
        code.roles(nvfp4, depth, way.panels, way.groups), num_warps=warps, **EARLY,
    )  # fmt: skip
    return y
