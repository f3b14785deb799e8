"""Paged attention on the GPU: long tiles and short tiles of one contract, launched over work lists in device memory.

Maths       as `ops.attention`: row t sees keys t - window < j <= t; s = (q . k) * f32(scale * log2 e) in base 2
Shapes      q [T, H, D] bf16, pool k, v [P, K, 64, D] bf16 -> [T, H * D] bf16; D a power of two from 16 to 256
            narrow pools [P, K, 64, D] e4m3: scale and O / l are multiplied with what keys and values were divided by
Rounding    fp32; e4m3 widens exactly; p to bf16 for its product with v, not for its sum; O / l is rounded once
Order       blocks of 64 keys and chunks of CHUNK keys, both at absolute positions. Per (row, block):
              c = chain over d; m' = max(m, max c * scale); p = exp2(fma(c, scale, -m')); a = exp2(m - m');
              l = fma(l, a, fold of p); O = chain over the block's keys, going on from O * a
            chunks start from (m = -inf, l = 0, O = 0) and merge in order:
              m' = max(m, mc); l = fma(l, exp2(m - m'), lc * exp2(mc - m')); O alike
            The fold is `numbers.fold64`. exp2 is the device's (ex2.approx).
            With a soft cap or a bias (`bias.py`): s = c * scale, or tanh(c * before) * after; s = fma(bias, log2 e, s);
              m' = max(m, max s); p = exp2(s - m')
Same bits   for every cut of a sequence into rows and steps, every tile, warp count, page number and neighbour;
            with its chunks computed one after the other or apart
Free        rows per tile, warps, stages, bulk copies or plain loads, which kernel takes a segment
            (tests/gpu/test_attention.py; `admit.py` on the machine itself)
Frozen      block, chunk, fold: changing one changes bits
NaN         slots that a row may not see never touch it: scores are replaced, and values times p = 0 are 0, because
            `rotate_and_store` zeroes the values of a page's slots when it opens the page
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from zerokl.ops.triton import attention_groups as groups
from zerokl.ops.triton.attention_rows import attend_rows
from zerokl.ops.triton.bias import distance_table
from zerokl.ops.triton.numbers import EARLY, INTERPRETED, begin, fold64, tanh
from zerokl.ops.triton.rope import Unturned, turned_and_stored
from zerokl.ops.work import CHUNK, ITEM, LONG_ROWS, SHORT_ROWS

BLOCK = tl.constexpr(64)
"""Keys per block, and slots per page."""


@triton.jit
def bent_scores(
    scores, positions, keys, table, at_bias, extent, scale, after, CAPPED: tl.constexpr, BIASED: tl.constexpr
):  # fmt: skip
    """The scores themselves, in base 2, where scale and exp2 can't be one fma."""
    bent = tanh(scores * scale) * after if CAPPED else scores * scale
    if BIASED:
        distance = positions[:, None] - keys[None, :]
        known = (distance >= 0) & (distance < extent)
        bias = tl.load(table + at_bias[:, None] + distance, mask=known, other=0.0)
        bent = tl.fma(bias, tl.zeros_like(bent) + 1.4426950408889634, bent)
    return bent


@triton.jit
def block_of_keys(
    peak, total, out, q, pool_k, pool_v, page, key_head, first_key, positions, scale, window, table, at_bias, extent,
    after, K: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, MASKED: tl.constexpr, BULK: tl.constexpr,
    REGISTERS: tl.constexpr, WARPS: tl.constexpr, WINDOWED: tl.constexpr, CAPPED: tl.constexpr, BIASED: tl.constexpr,
):  # fmt: skip
    """The running (peak m, total l, out O) of a chunk after one more block of keys."""
    first_row = (page * K + key_head) * BLOCK
    offsets = tl.arange(0, BLOCK)
    if BULK:
        k = pool_k.load([first_row, 0])
    else:
        k = tl.load(pool_k + (first_row.to(tl.int64) + offsets)[:, None] * D + tl.arange(0, D)[None, :])
    scores = tl.dot(q, k.to(q.dtype).T)
    keys = first_key + offsets
    if CAPPED or BIASED:
        scores = bent_scores(scores, positions, keys, table, at_bias, extent, scale, after, CAPPED, BIASED)
    if MASKED:
        visible = keys[None, :] <= positions[:, None]
        if WINDOWED:
            visible = visible & (keys[None, :] > positions[:, None] - window)
        scores = tl.where(visible, scores, float("-inf"))
    if CAPPED or BIASED:
        new_peak = tl.maximum(peak, tl.max(scores, 1))
    else:
        new_peak = tl.maximum(peak, tl.max(scores, 1) * scale)
    base = tl.where(new_peak == float("-inf"), 0.0, new_peak) if MASKED else new_peak
    if CAPPED or BIASED:
        p = tl.exp2(scores - base[:, None])
    else:
        below = tl.broadcast_to(-base[:, None], [ROWS, BLOCK])
        p = tl.exp2(tl.fma(scores, tl.full([ROWS, BLOCK], scale, tl.float32), below))
    shrink = tl.exp2(peak - base)
    total = tl.fma(total, shrink, fold64(p, ROWS, REGISTERS, WARPS))
    if BULK:
        v = pool_v.load([first_row, 0])
    else:
        v = tl.load(pool_v + (first_row.to(tl.int64) + offsets)[:, None] * D + tl.arange(0, D)[None, :])
    out = tl.dot(p.to(q.dtype), v.to(q.dtype), out * shrink[:, None])
    return new_peak, total, out


@triton.jit
def chunk_of_keys(
    q, pool_k, pool_v, pages, key_head, start, stop, first_position, positions, scale, window, table, at_bias, extent,
    after, K: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, BULK: tl.constexpr, REGISTERS: tl.constexpr,
    WARPS: tl.constexpr, PAGES: tl.constexpr, ONE_LOOP: tl.constexpr, WINDOWED: tl.constexpr, CAPPED: tl.constexpr,
    BIASED: tl.constexpr,
):  # fmt: skip
    """(m, l, O) of keys start .. stop - 1, a chunk's or the part of it that is there.

    All rows see what lies before `first_position`, so blocks there need no mask, unless there is a window. ONE_LOOP
    masks them all the same: few rows don't feel it, and their loads stay in flight to the end.
    """
    # A chunk's page numbers at once: a load of each inside the loop would stand before the bulk copies in the pipeline.
    place = tl.arange(0, PAGES)
    first_page = start // BLOCK
    numbers = tl.load(pages + first_page + place, mask=(first_page + place) * BLOCK < stop, other=0)
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    out = tl.zeros([ROWS, D], tl.float32)
    if ONE_LOOP or WINDOWED:
        clear = start
    else:
        clear = tl.maximum(start, tl.minimum(stop, (first_position + 1) // BLOCK * BLOCK))
    for key in tl.range(start, clear, BLOCK):
        page = tl.sum(tl.where(place == key // BLOCK - first_page, numbers, 0), 0)
        peak, total, out = block_of_keys(
            peak, total, out, q, pool_k, pool_v, page, key_head, key, positions, scale, window, table, at_bias, extent,
            after, K, D, ROWS, False, BULK, REGISTERS, WARPS, WINDOWED, CAPPED, BIASED,
        )  # fmt: skip
    for key in tl.range(clear, stop, BLOCK):
        page = tl.sum(tl.where(place == key // BLOCK - first_page, numbers, 0), 0)
        peak, total, out = block_of_keys(
            peak, total, out, q, pool_k, pool_v, page, key_head, key, positions, scale, window, table, at_bias, extent,
            after, K, D, ROWS, True, BULK, REGISTERS, WARPS, WINDOWED, CAPPED, BIASED,
        )  # fmt: skip
    return peak, total, out


@triton.jit
def first_visible(position, window, WINDOWED: tl.constexpr):
    """Where the block of the first key begins that a row at this position sees."""
    if WINDOWED:
        first = tl.maximum(position - window + 1, 0) // BLOCK * BLOCK
    else:
        first = position * 0
    return first


@triton.jit
def merged(peak, total, out, chunk_peak, chunk_total, chunk_out, ROWS: tl.constexpr, D: tl.constexpr):
    """The state after one more chunk."""
    new_peak = tl.maximum(peak, chunk_peak)
    base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
    old, new = tl.exp2(peak - base), tl.exp2(chunk_peak - base)
    total = tl.fma(total, old, chunk_total * new)
    out = tl.fma(out, tl.broadcast_to(old[:, None], [ROWS, D]), chunk_out * new[:, None])
    return new_peak, total, out


@triton.jit
def finished(out, total, v_scale):
    """O / l, times what narrow values were divided by.

    The sum turns -0 into +0, so that a skipped block and an added zero can't be told apart.
    """
    return tl.div_rn(out, tl.zeros_like(out) + total[:, None]) * v_scale + 0.0


@triton.jit(do_not_specialize=["table_width", "window", "extent"])
def long_tiles(
    q, pool_k, pool_v, page_table, y, items, num_items, scale, table_width, window, table, extent, after, v_scale,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr, BULK: tl.constexpr,
    REGISTERS: tl.constexpr, ITEM_SIZE: tl.constexpr, PARTS: tl.constexpr, WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr, BIASED: tl.constexpr,
):  # fmt: skip
    """PARTS programs per (key head, item): each ROWS packed rows (token, head of the group), chunk after chunk."""
    begin()
    key_head, item = tl.program_id(0), tl.program_id(1) // PARTS
    if item >= tl.load(num_items):
        return
    entry = items + item * ITEM_SIZE
    segment, first_row, num_tokens = tl.load(entry), tl.load(entry + 1), tl.load(entry + 2)
    start, tile = tl.load(entry + 3), tl.load(entry + 4) * PARTS + tl.program_id(1) % PARTS
    GROUP: tl.constexpr = H // K
    if tile * ROWS >= num_tokens * GROUP:
        return
    rows = tile * ROWS + tl.arange(0, ROWS)
    token, head = rows // GROUP, key_head * GROUP + rows % GROUP
    live = token < num_tokens
    at = ((first_row + token).to(tl.int64) * H + head)[:, None] * D + tl.arange(0, D)[None, :]
    queries = tl.load(q + at, mask=live[:, None], other=0.0)
    first_position = start + tile * ROWS // GROUP
    last_position = start + tl.minimum((tile * ROWS + ROWS - 1) // GROUP, num_tokens - 1)
    pages = page_table + segment.to(tl.int64) * table_width
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    out = tl.zeros([ROWS, D], tl.float32)
    first_key = first_visible(first_position, window, WINDOWED)
    at_bias = tl.where(live, ((first_row + token).to(tl.int64) * H + head) * extent, 0)
    for chunk_start in range(first_key // CHUNK * CHUNK, last_position + 1, CHUNK):
        stop = tl.minimum(chunk_start + CHUNK, last_position + 1)
        chunk_peak, chunk_total, chunk_out = chunk_of_keys(
            queries, pool_k, pool_v, pages, key_head, tl.maximum(chunk_start, first_key), stop, first_position,
            start + token, scale, window, table, at_bias, extent, after,
            K, D, ROWS, BULK, REGISTERS, 1, CHUNK // BLOCK, False, WINDOWED, CAPPED, BIASED,
        )  # fmt: skip
        peak, total, out = merged(peak, total, out, chunk_peak, chunk_total, chunk_out, ROWS, D)
    tl.store(y + at, finished(out, total, v_scale).to(y.dtype.element_ty), mask=live[:, None])


@triton.jit(do_not_specialize=["table_width", "window", "extent"])
def short_tiles(
    q, pool_k, pool_v, page_table, y, part_peak, part_total, part_out, arrived, items, num_items, scale, table_width,
    window, table, extent, after, v_scale, H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr,
    CHUNK: tl.constexpr, BULK: tl.constexpr, REGISTERS: tl.constexpr, WARPS: tl.constexpr, ITEM_SIZE: tl.constexpr,
    WINDOWED: tl.constexpr, CAPPED: tl.constexpr, BIASED: tl.constexpr,
):  # fmt: skip
    """Programs (key head, any) take items: the few rows of a segment and one chunk. A lone chunk is finished here."""
    begin()
    key_head = tl.program_id(0)
    GROUP: tl.constexpr = H // K
    rows = tl.arange(0, ROWS)
    token, head = rows // GROUP, key_head * GROUP + rows % GROUP
    dims = tl.arange(0, D)
    for item in range(tl.program_id(1), tl.load(num_items), tl.num_programs(1)):
        entry = items + item * ITEM_SIZE
        segment, first_row, num_tokens = tl.load(entry), tl.load(entry + 1), tl.load(entry + 2)
        start, chunk, num_chunks = tl.load(entry + 3), tl.load(entry + 4), tl.load(entry + 5)
        live = token < num_tokens
        at = ((first_row + token).to(tl.int64) * H + head)[:, None] * D + dims[None, :]
        queries = tl.load(q + at, mask=live[:, None], other=0.0)
        last_position = start + num_tokens - 1
        pages = page_table + segment.to(tl.int64) * table_width
        stop = tl.minimum((chunk + 1) * CHUNK, last_position + 1)
        first_key = tl.maximum(chunk * CHUNK, first_visible(start, window, WINDOWED))
        at_bias = tl.where(live, ((first_row + token).to(tl.int64) * H + head) * extent, 0)
        peak, total, out = chunk_of_keys(
            queries, pool_k, pool_v, pages, key_head, first_key, stop, start, start + token, scale, window, table,
            at_bias, extent, after,
            K, D, ROWS, BULK, REGISTERS, WARPS, CHUNK // BLOCK, True, WINDOWED, CAPPED, BIASED,
        )  # fmt: skip
        if num_chunks == 1:
            tl.store(y + at, finished(out, total, v_scale).to(y.dtype.element_ty), mask=live[:, None])
        else:
            part = (item * K + key_head) * ROWS + rows
            tl.store(part_peak + part, peak)
            tl.store(part_total + part, total)
            tl.store(part_out + part[:, None] * D + dims[None, :], out)
            tl.debug_barrier()
            first = item - chunk + tl.load(entry + 6)
            counter = arrived + first * K + key_head
            if tl.atomic_add(counter, 1, sem="acq_rel") == num_chunks - 1:
                tl.store(counter, 0)
                tl.debug_barrier()
                merge_parts(
                    y + at, part_peak, part_total, part_out, first, num_chunks, key_head, live, v_scale, K, D, ROWS
                )


@triton.jit
def merge_parts(
    at_y, part_peak, part_total, part_out, first, num_chunks, key_head, live, v_scale,
    K: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """A segment's chunks in order, by the program whose part came last: who that is moves no bit."""
    rows, dims = tl.arange(0, ROWS), tl.arange(0, D)
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    out = tl.zeros([ROWS, D], tl.float32)
    for chunk in range(num_chunks):
        part = ((first + chunk) * K + key_head) * ROWS + rows
        chunk_peak = tl.load(part_peak + part, cache_modifier=".cg")
        chunk_total = tl.load(part_total + part, cache_modifier=".cg")
        chunk_out = tl.load(part_out + part[:, None] * D + dims[None, :], cache_modifier=".cg")
        peak, total, out = merged(peak, total, out, chunk_peak, chunk_total, chunk_out, ROWS, D)
    tl.store(at_y, finished(out, total, v_scale).to(at_y.dtype.element_ty), mask=live[:, None])


class Tile(NamedTuple):
    """How a kernel is cut. Free, as long as warps own whole rows (16 rows each), or share 16 rows by columns."""

    rows: int
    warps: int
    stages: int

    @property
    def sharing(self) -> int:
        """Warps that share a row."""
        return max(1, self.warps * 16 // self.rows) if self.rows == 16 else 1

    @property
    def registers(self) -> int:
        """Folds of a row's numbers that lie in one thread: of 6, the warps and the four threads take the rest."""
        return 6 if INTERPRETED else 4 - self.sharing.bit_length() + 1


LONG = Tile(64, 4, 3)
SHORT = Tile(SHORT_ROWS, 4, 3)
MANY_SHORT = Tile(SHORT_ROWS, 4, 2)
"""With many segments more programs per processor beat deeper pipelines: 103 against 106 us for 256 of 384 keys."""
MANY = 48
SMALL_HEAD = 16
"""Warps can't share a row of so few columns of v, and the compiler gives each of them rows of its own: there is one."""
LARGE_HEAD = 256
"""Three stages of blocks of this width don't fit a processor's memory."""
BULK = not INTERPRETED


def attention(q: Any, kv: Any, scale: float, after: float = 0.0, window: int = 0, bias: Any = None) -> Any:
    """See the top of the file. `kv.ragged.work` says who does what.

    `scale`, `after`: of `ops.attention.score_factors`; `bias`: (queries' part [T, H, B], profile [B, extent]).
    """
    if isinstance(q, Unturned):
        if not (after or window or bias):
            return attend_rows(*q, scale)
        q = turned_and_stored(*q)
    tokens, heads, size = q.shape
    key_heads, work = kv.k.shape[1], kv.ragged.work
    y = torch.empty((tokens, heads * size), dtype=q.dtype, device=q.device)
    pools = (descriptor(kv.k), descriptor(kv.v)) if BULK else (kv.k, kv.v)
    pages = kv.ragged.page_table
    table, extent = (y, 1) if bias is None else (distance_table(*bias), bias[1].shape[1])
    flags = {"WINDOWED": window > 0, "CAPPED": after != 0.0, "BIASED": bias is not None}
    k_scale, v_scale = kv.scales
    given = scale * k_scale, pages.stride(0), window, table, extent, after, v_scale, heads, key_heads, size
    if work.long_grid and BULK and not any(flags.values()) and groups.serves(q, kv):
        groups.run_groups(q, kv, y, scale * k_scale, v_scale, CHUNK)
    elif work.long_grid:
        long = LONG if size < LARGE_HEAD else LONG._replace(stages=2)
        parts = LONG_ROWS // long.rows
        long_tiles[(key_heads, work.long_grid * parts)](
            q, *pools, pages, y, work.long, work.counts, *given, long.rows, CHUNK, BULK, long.registers, ITEM, parts,
            **flags, num_warps=long.warps, num_stages=long.stages, **EARLY,
        )  # fmt: skip
    if work.short_grid:
        tile = short_tile(MANY_SHORT if work.segments >= MANY else SHORT, size)
        short_tiles[(key_heads, work.short_grid)](
            q, *pools, pages, y, *work.parts, work.short, work.counts[4:], *given, tile.rows, CHUNK, BULK,
            tile.registers, tile.sharing, ITEM, **flags, num_warps=tile.warps, num_stages=tile.stages, **EARLY,
        )  # fmt: skip
    return y


def short_tile(tile: Tile, size: int) -> Tile:
    """As it is used with heads of this size."""
    return tile if size > SMALL_HEAD else tile._replace(warps=1)


def descriptor(pool: Any) -> TensorDescriptor:
    """A pool as rows of one slot and key head, read one block at a time by the bulk copy engine."""
    rows = pool.view(-1, pool.shape[-1])
    return TensorDescriptor(rows, list(rows.shape), list(rows.stride()), [64, pool.shape[-1]])
