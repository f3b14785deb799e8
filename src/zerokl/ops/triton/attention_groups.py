"""Attention of many rows on Hopper: one warp copies keys and values, two groups of four warps share them.

A unit is a key head and 128 packed rows (token, head of the group); each group has 64. Programs take units in turn,
as many programs as processors. The copying warp is ahead of them, across units too, and so are queries.

    copies    k0 | v0 k1 | v1 k2 | ... | v(n-1)        a stage each, four places in turn
    a group   while the matrix unit makes the scores of block i + 1, it turns those of block i into p(i); then p(i) v(i)

Half the bytes from L2 of tiles of 64 rows, which is what those wait for; and what one group waits for, the other hides.
O so far lies in shared memory between chunks. Nothing is in flight where a loop comes round: the compiler would wait
for every product (docs/log.md).

Maths, shapes, rounding, order, bits: those of `attention.py`, without windows, caps, biases and narrow keys
Free        everything here (tests/gpu/test_attention.py)
"""

from __future__ import annotations

from typing import Any

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from zerokl.ops.triton.numbers import EARLY
from zerokl.ops.triton.persistent import processors
from zerokl.ops.work import ITEM, LONG_ROWS

PLACES = 4
LOADING, WORKING = 24, 240
"""Registers of a thread."""
SIZES = (64, 128)
"""Of heads that fit."""


@gluon.jit
def halves(x, half: gl.constexpr):
    low, high = gl.split(x.reshape([64, 2, half]).permute(0, 2, 1))
    return low, high


@gluon.jit
def fold64(p):
    """As `numbers.fold64` where a warp has whole rows."""
    even, odd = gl.split(p.reshape([64, 32, 2]))
    low, high = halves(even + odd, 16)
    low, high = halves(low + high, 8)
    low, high = halves(low + high, 4)
    return gl.sum(low + high, 1)


@gluon.jit
def highest(scores):
    """By the same tree: shorter chains than one after the other."""
    even, odd = gl.split(scores.reshape([64, 32, 2]))
    low, high = halves(gl.maximum(even, odd), 16)
    low, high = halves(gl.maximum(low, high), 8)
    low, high = halves(gl.maximum(low, high), 4)
    return gl.max(gl.maximum(low, high), 1)


@gluon.jit
def weights(
    scores, peak, total, key, positions, scale, MASKED: gl.constexpr, SCORES: gl.constexpr, SUMS: gl.constexpr
):  # fmt: skip
    """(m, l, p as the left operand of its product, what O shrinks by) after the block that begins at `key`."""
    rows: gl.constexpr = gl.SliceLayout(1, SCORES)
    zeros = gl.full([64, 64], 0.0, gl.float32, SCORES)
    if MASKED:
        keys = key + gl.arange(0, 64, layout=gl.SliceLayout(0, SCORES))
        scores = gl.where(keys[None, :] <= positions[:, None], scores, float("-inf"))
    new_peak = gl.maximum(peak, gl.convert_layout(highest(scores), rows) * scale)
    base = gl.where(new_peak == float("-inf"), 0.0, new_peak) if MASKED else new_peak
    p = gl.exp2(gl.fma(scores, zeros + scale, zeros - base[:, None]))
    shrink = gl.exp2(peak - base)
    total = gl.fma(total, shrink, gl.convert_layout(fold64(p), rows))
    return new_peak, total, gl.convert_layout(p.to(gl.bfloat16), gl.DotOperandLayout(0, SUMS, 2)), shrink


@gluon.jit
def scores_of(queries, keys, SCORES: gl.constexpr):
    """Under way."""
    zeros = gl.zeros([64, 64], gl.float32, SCORES)
    return warpgroup_mma(queries, keys.permute((1, 0)), zeros, use_acc=False, is_async=True)


@gluon.jit
def step(
    scores, peak, total, out, stage, key, queries, shared, positions, scale,
    MASKED: gl.constexpr, PLACES: gl.constexpr, SCORES: gl.constexpr, SUMS: gl.constexpr,
):  # fmt: skip
    """A stage: the values of the block at `key`, whose scores are there, and the keys of the next."""
    k_ring, v_ring, full, empty, open = shared
    place, phase = stage % PLACES, (stage // PLACES) & 1
    mbarrier.wait(full.index(place), phase)
    coming = scores_of(queries, k_ring.index(place), SCORES)
    # Nothing to wait for. It ends a block of instructions, else the compiler makes weights before it asks for scores.
    mbarrier.wait(open, 1)
    peak, total, p, shrink = weights(scores, peak, total, key, positions, scale, MASKED, SCORES, SUMS)
    out = out * gl.convert_layout(shrink, gl.SliceLayout(1, SUMS))[:, None]
    out = warpgroup_mma(p, v_ring.index(place), out, is_async=True)
    out, scores = warpgroup_mma_wait(0, deps=(out, coming))
    mbarrier.arrive(empty.index(place), count=1)
    return scores, peak, total, out


@gluon.jit
def last_step(
    scores, peak, total, out, stage, key, shared, positions, scale,
    PLACES: gl.constexpr, SCORES: gl.constexpr, SUMS: gl.constexpr,
):  # fmt: skip
    v_ring, full, empty = shared[1], shared[2], shared[3]
    place = stage % PLACES
    peak, total, p, shrink = weights(scores, peak, total, key, positions, scale, True, SCORES, SUMS)
    out = out * gl.convert_layout(shrink, gl.SliceLayout(1, SUMS))[:, None]
    mbarrier.wait(full.index(place), (stage // PLACES) & 1)
    out = warpgroup_mma(p, v_ring.index(place), out, is_async=True)
    out = warpgroup_mma_wait(0, deps=(out,))
    mbarrier.arrive(empty.index(place), count=1)
    return peak, total, out


@gluon.jit
def merge(whole_peak, whole_total, kept, peak, total, out, D: gl.constexpr, SUMS: gl.constexpr):
    """One more chunk into what lies in `kept`."""
    new_peak = gl.maximum(whole_peak, peak)
    base = gl.where(new_peak == float("-inf"), 0.0, new_peak)
    old, new = gl.exp2(whole_peak - base), gl.exp2(peak - base)
    rows: gl.constexpr = gl.SliceLayout(1, SUMS)
    wide = gl.full([64, D], 0.0, gl.float32, SUMS) + gl.convert_layout(old, rows)[:, None]
    kept.store(gl.fma(kept.load(SUMS), wide, out * gl.convert_layout(new, rows)[:, None]))
    return new_peak, gl.fma(whole_total, old, total * new)


@gluon.jit
def quotient(x, total, D: gl.constexpr, SUMS: gl.constexpr):
    """x / total as IEEE says: by the correctly rounded inverse of a row and a remainder, where x is 0 or far from the
    ends of what float32 has, or else by division."""
    size = gl.abs(x)
    fine = (size < 1.2676506e30) & ((size > 8.470329e-22) | (size == 0.0))
    totals = gl.full([64, D], 0.0, gl.float32, SUMS) + total[:, None]
    if gl.min(gl.min(fine.to(gl.int32), 1), 0) == 1:
        inverse = gl.div_rn(gl.full([64], 1.0, gl.float32, gl.SliceLayout(1, SUMS)), total)
        wide = gl.full([64, D], 0.0, gl.float32, SUMS) + inverse[:, None]
        near = x * wide
        found = gl.fma(gl.fma(-near, totals, x), wide, near)
    else:
        found = gl.div_rn(x, totals)
    return found


@gluon.jit
def ask_for_queries(
    q, queries, first_row, num_tokens, first_packed, key_head,
    H: gl.constexpr, D: gl.constexpr, GROUP: gl.constexpr, B: gl.constexpr,
):  # fmt: skip
    """Rows without a token get the last one's."""
    rows = first_packed + gl.arange(0, 64, layout=gl.SliceLayout(1, B))
    dims = gl.arange(0, D, layout=gl.SliceLayout(0, B))
    token = gl.minimum(rows // GROUP, num_tokens - 1)
    at = ((first_row + token).to(gl.int64) * H + key_head * GROUP + rows % GROUP)[:, None] * D + dims[None, :]
    async_copy.async_copy_global_to_shared(queries, q + at)
    async_copy.commit_group()


@gluon.jit
def unit_of(turn):
    """There and back again, longest first, so that every program gets as much."""
    programs, own = gl.num_programs(0), gl.program_id(0)
    return turn * programs + gl.where(turn % 2 == 0, own, programs - 1 - own)


@gluon.jit
def turns_of(num_units):
    """How many units this program has."""
    programs, own = gl.num_programs(0), gl.program_id(0)
    whole = num_units // programs
    return whole + gl.where(gl.where(whole % 2 == 0, own, programs - 1 - own) < num_units % programs, 1, 0)


@gluon.jit
def item_of(entry, GROUP: gl.constexpr):
    """(segment, first row, tokens, start, first packed row, blocks of keys)"""
    segment, first_row, num_tokens = gl.load(entry), gl.load(entry + 1), gl.load(entry + 2)
    start, tile = gl.load(entry + 3), gl.load(entry + 4)
    last = start + gl.minimum((tile * 128 + 127) // GROUP, num_tokens - 1)
    return segment, first_row, num_tokens, start, tile * 128, last // 64 + 1


@gluon.jit
def attend(
    q, y, items, num_items, scale, v_scale, shared, queries, kept,
    WHO: gl.constexpr, H: gl.constexpr, K: gl.constexpr, D: gl.constexpr, CHUNK: gl.constexpr, PLACES: gl.constexpr,
    ITEM_SIZE: gl.constexpr,
):  # fmt: skip
    """One group's 64 rows of every unit of this program."""
    k_ring, full, empty = shared[0], shared[2], shared[3]
    GROUP: gl.constexpr = H // K
    PER_CHUNK: gl.constexpr = CHUNK // 64
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    B: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [4, 1], [1, 0])
    s_rows: gl.constexpr = gl.SliceLayout(1, SCORES)
    o_rows: gl.constexpr = gl.SliceLayout(1, SUMS)
    stage = gl.program_id(0) * 0
    turns = turns_of(gl.load(num_items) * K)
    if turns > 0:
        unit = unit_of(0)
        item = item_of(items + unit // K * ITEM_SIZE, GROUP)
        ask_for_queries(q, queries, item[1], item[2], item[4] + WHO * 64, unit % K, H, D, GROUP, B)
    for turn in range(turns):
        unit = unit_of(turn)
        key_head = unit % K
        first_row, num_tokens, start, first_packed, count = item_of(items + unit // K * ITEM_SIZE, GROUP)[1:]
        first_packed += WHO * 64
        unit = unit_of(gl.minimum(turn + 1, turns - 1))
        coming = item_of(items + unit // K * ITEM_SIZE, GROUP)
        positions = start + (first_packed + gl.arange(0, 64, layout=s_rows)) // GROUP
        clear = (start + first_packed // GROUP + 1) // 64  # blocks that every row sees
        async_copy.wait_group(0)
        left = queries.load(gl.DotOperandLayout(0, SCORES, 2))
        ask_for_queries(q, queries, coming[1], coming[2], coming[4] + WHO * 64, unit % K, H, D, GROUP, B)
        place = stage % PLACES
        mbarrier.wait(full.index(place), (stage // PLACES) & 1)
        scores = warpgroup_mma_wait(0, deps=(scores_of(left, k_ring.index(place), SCORES),))
        mbarrier.arrive(empty.index(place), count=1)
        stage += 1
        whole_peak = gl.full([64], float("-inf"), gl.float32, s_rows)
        whole_total = gl.full([64], 0.0, gl.float32, s_rows)
        kept.store(gl.zeros([64, D], gl.float32, SUMS))
        for chunk in range(0, count, PER_CHUNK):
            stop = gl.minimum(chunk + PER_CHUNK, count)
            last = gl.minimum(stop, count - 1)
            middle = chunk + gl.maximum(gl.minimum(last, clear) - chunk, 0) // 2 * 2
            peak = gl.full([64], float("-inf"), gl.float32, s_rows)
            total = gl.full([64], 0.0, gl.float32, s_rows)
            out = gl.zeros([64, D], gl.float32, SUMS)
            for n in range(chunk, middle, 2):  # two, so that scores change registers and need not be moved
                for i in gl.static_range(2):
                    scores, peak, total, out = step(
                        scores, peak, total, out, stage + n + i, (n + i) * 64, left, shared, positions, scale, False,
                        PLACES, SCORES, SUMS,
                    )  # fmt: skip
            for n in range(middle, last):
                scores, peak, total, out = step(
                    scores, peak, total, out, stage + n, n * 64, left, shared, positions, scale, True,
                    PLACES, SCORES, SUMS,
                )  # fmt: skip
            if stop == count:
                peak, total, out = last_step(
                    scores, peak, total, out, stage + count - 1, (count - 1) * 64, shared, positions, scale,
                    PLACES, SCORES, SUMS,
                )  # fmt: skip
            whole_peak, whole_total = merge(whole_peak, whole_total, kept, peak, total, out, D, SUMS)
        rows = first_packed + gl.arange(0, 64, layout=o_rows)
        dims = gl.arange(0, D, layout=gl.SliceLayout(0, SUMS))
        token = rows // GROUP
        at = ((first_row + token).to(gl.int64) * H + key_head * GROUP + rows % GROUP)[:, None] * D + dims[None, :]
        result = quotient(kept.load(SUMS), gl.convert_layout(whole_total, o_rows), D, SUMS) * v_scale + 0.0
        gl.store(y + at, result.to(y.dtype.element_ty), mask=(token < num_tokens)[:, None] & (dims < D)[None, :])
        stage += count


@gluon.jit
def next_place(full, empty, stage, PLACES: gl.constexpr, BYTES: gl.constexpr):
    """Where a stage's copies go, when it is free."""
    place = stage % PLACES
    mbarrier.wait(empty.index(place), ((stage // PLACES) & 1) ^ 1)
    mbarrier.expect(full.index(place), BYTES)
    return place


@gluon.jit
def load_blocks(
    pool_k, pool_v, page_table, items, num_items, table_width, shared,
    H: gl.constexpr, K: gl.constexpr, D: gl.constexpr, PLACES: gl.constexpr, ITEM_SIZE: gl.constexpr,
):  # fmt: skip
    """In the order that is at the top of the file."""
    k_ring, v_ring, full, empty = shared[0], shared[1], shared[2], shared[3]
    BYTES: gl.constexpr = 64 * D * 2
    stage = gl.program_id(0) * 0
    for turn in range(turns_of(gl.load(num_items) * K)):
        key_head = unit_of(turn) % K
        item = item_of(items + unit_of(turn) // K * ITEM_SIZE, H // K)
        pages, count = page_table + item[0].to(gl.int64) * table_width, item[5]
        before = (gl.load(pages) * K + key_head) * 64
        page = gl.load(pages + gl.minimum(1, count - 1))
        place = next_place(full, empty, stage, PLACES, BYTES)
        tma.async_copy_global_to_shared(pool_k, [before, 0], full.index(place), k_ring.index(place))
        stage += 1
        for n in range(1, count):
            at = (page * K + key_head) * 64
            page = gl.load(pages + gl.minimum(n + 1, count - 1))
            place = next_place(full, empty, stage, PLACES, 2 * BYTES)
            tma.async_copy_global_to_shared(pool_k, [at, 0], full.index(place), k_ring.index(place))
            tma.async_copy_global_to_shared(pool_v, [before, 0], full.index(place), v_ring.index(place))
            # A value of its own: a loop takes a name that shares its value with another for unchanged (docs/log.md).
            before = at + 0
            stage += 1
        place = next_place(full, empty, stage, PLACES, BYTES)
        tma.async_copy_global_to_shared(pool_v, [before, 0], full.index(place), v_ring.index(place))
        stage += 1


@gluon.jit(do_not_specialize=["table_width"])
def long_groups(
    q, pool_k, pool_v, page_table, y, items, num_items, scale, table_width, v_scale,
    H: gl.constexpr, K: gl.constexpr, D: gl.constexpr, CHUNK: gl.constexpr, PLACES: gl.constexpr,
    ITEM_SIZE: gl.constexpr, LOADING: gl.constexpr, WORKING: gl.constexpr,
):  # fmt: skip
    """As many programs as processors, or as there may be units."""
    gdc_launch_dependents()
    gdc_wait()
    k_ring = gl.allocate_shared_memory(gl.bfloat16, [PLACES, 64, D], pool_k.layout)
    v_ring = gl.allocate_shared_memory(gl.bfloat16, [PLACES, 64, D], pool_k.layout)
    queries = gl.allocate_shared_memory(gl.bfloat16, [2, 64, D], pool_k.layout)
    kept = gl.allocate_shared_memory(gl.float32, [2, 64, D], gl.SwizzledSharedLayout(8, 1, 8, [1, 0]))
    full = gl.allocate_shared_memory(gl.int64, [PLACES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [PLACES, 1], mbarrier.MBarrierLayout())
    open = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(open, count=1)
    for i in gl.static_range(PLACES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=2)
    shared = (k_ring, v_ring, full, empty, open)
    gl.warp_specialize(
        [
            (attend, (
                q, y, items, num_items, scale, v_scale, shared, queries.index(0), kept.index(0),
                0, H, K, D, CHUNK, PLACES, ITEM_SIZE,
            )),
            (attend, (
                q, y, items, num_items, scale, v_scale, shared, queries.index(1), kept.index(1),
                1, H, K, D, CHUNK, PLACES, ITEM_SIZE,
            )),
            (load_blocks, (
                pool_k, pool_v, page_table, items, num_items, table_width, shared, H, K, D, PLACES, ITEM_SIZE,
            )),
        ],
        [4, 1], [WORKING, LOADING],
    )  # fmt: skip


def serves(q: Any, kv: Any) -> bool:
    """Whether this file has a kernel for these heads, and enough units to fill the processors twice."""
    tokens, heads, size = q.shape
    units = tokens * heads // LONG_ROWS
    return size in SIZES and kv.k.dtype == torch.bfloat16 == q.dtype and units >= 2 * processors(str(q.device))


def run_groups(q: Any, kv: Any, y: Any, scale: float, v_scale: float, chunk: int) -> None:
    """Fill the rows of y that long items have."""
    _, heads, size = q.shape
    key_heads, work, pages = kv.k.shape[1], kv.ragged.work, kv.ragged.page_table
    programs = min(processors(str(q.device)), work.long_grid * key_heads)
    long_groups[(programs,)](
        q, blocks(kv.k), blocks(kv.v), pages, y, work.long, work.counts, scale, pages.stride(0), v_scale,
        heads, key_heads, size, chunk, PLACES, ITEM, LOADING, WORKING, num_warps=4, **EARLY,
    )  # fmt: skip


def blocks(pool: Any) -> TensorDescriptor:
    rows = pool.view(-1, pool.shape[-1])
    layout = gl.NVMMASharedLayout.get_default_for([64, pool.shape[-1]], gl.bfloat16)
    return TensorDescriptor(rows, list(rows.shape), list(rows.stride()), [64, pool.shape[-1]], layout)
