"""Attention of single tokens on Hopper, from the fused projection to what each head saw, in one kernel.

One token's step waits for memory and for kernels to begin, not for arithmetic. So a program (key head, item) does what
`rope.py` and `attention.short_tiles` do one after the other, and what doesn't depend on this step's projection it asks
for before the kernel ahead has ended: lists and page tables, which were sent before the step, and the pages that
earlier steps have filled.

    before the wait    item, page numbers, bulk copies of whole pages, the last page in registers
    behind it          heads' norms and rotation; the new key and value into the last page, there and in the cache
    AT_ONCE blocks     scores of all, then maxima, weights and sums of all, then products with v one after the other

Maths, shapes, rounding, order, bits: those of `rope.py` and `attention.py`; each segment has one token, the group's
queries with its key and value fit 8 rows, heads are turned whole; without windows, caps, biases and narrow keys
Free        places, blocks at once, programs (tests/gpu/test_attention.py)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from zerokl.ops.triton.attention_groups import SIZES, blocks
from zerokl.ops.triton.numbers import EARLY
from zerokl.ops.triton.persistent import processors
from zerokl.ops.work import CHUNK, ITEM

TILE = 8
"""Rows of a key head: its queries, then the new key, then the new value."""


class Cut(NamedTuple):
    """How the kernel is cut. Free."""

    places: int
    """Blocks of keys and values in shared memory."""
    at_once: int
    """Blocks whose scores are made together: 2, 3 or 4."""
    registers: int
    """Of a thread, at most: a product's many warps leave room for few."""


CUT = Cut(3, 2, 128)


@gluon.jit
def halves(x, N: gl.constexpr):
    """[8, B, 2 N] -> [8, B, N]: each number of the first half plus its partner of the second."""
    low, high = gl.split(x.reshape([8, x.shape[1], 2, N]).permute(0, 1, 3, 2))
    return low + high


@gluon.jit
def fold64(p):
    """[8, B, 64] -> [8, B], the tree of `numbers.fold64`; four threads share a row."""
    even, odd = gl.split(p.reshape([8, p.shape[1], 32, 2]))
    return gl.sum(halves(halves(halves(even + odd, 16), 8), 4), 2)


@gluon.jit
def merged(peak, total, out, chunk_peak, chunk_total, chunk_out, LIVE: gl.constexpr):
    new_peak = gl.maximum(peak, chunk_peak)
    base = gl.where(new_peak == float("-inf"), 0.0, new_peak)
    old, new = gl.exp2(peak - base), gl.exp2(chunk_peak - base)
    wide = gl.full(out.shape, 0.0, gl.float32, LIVE) + old[:, None]
    return new_peak, gl.fma(total, old, chunk_total * new), gl.fma(out, wide, chunk_out * new[:, None])


@gluon.jit
def finished(out, total, v_scale, LIVE: gl.constexpr):
    return gl.div_rn(out, gl.full(out.shape, 0.0, gl.float32, LIVE) + total[:, None]) * v_scale + 0.0


@gluon.jit
def copy_block(pools, pages, key_head, block, shared, number, K: gl.constexpr, D: gl.constexpr, PLACES: gl.constexpr):
    k_ring, v_ring, bars = shared
    place = number % PLACES
    row = (gl.load(pages + block) * K + key_head) * 64
    mbarrier.expect(bars.index(place), 2 * 64 * D * 2)
    tma.async_copy_global_to_shared(pools[0], [row, 0], bars.index(place), k_ring.index(place))
    tma.async_copy_global_to_shared(pools[1], [row, 0], bars.index(place), v_ring.index(place))


@gluon.jit
def fetch(
    item, count, items, page_table, table_width, pools, key_head, shared, number,
    K: gl.constexpr, D: gl.constexpr, CHUNK: gl.constexpr, PLACES: gl.constexpr, ITEM_SIZE: gl.constexpr,
):  # fmt: skip
    """Ask for the first blocks of an item, as earlier steps have left them: the item's numbers."""
    there = item < count
    entry = items + item * ITEM_SIZE
    segment, row, position, chunk = gl.load(entry), gl.load(entry + 1), gl.load(entry + 3), gl.load(entry + 4)
    chunks, first_chunk = gl.load(entry + 5), gl.load(entry + 6)
    segment, row, position = gl.where(there, segment, 0), gl.where(there, row, 0), gl.where(there, position, 0)
    pages = page_table + segment.to(gl.int64) * table_width
    page = gl.load(pages + position // 64)
    first = chunk * (CHUNK // 64)
    blocks = gl.where(there, gl.minimum(position // 64 + 1 - first, CHUNK // 64), 0)
    for n in range(gl.minimum(blocks, PLACES)):
        copy_block(pools, pages, key_head, first + n, shared, number + n, K, D, PLACES)
    return pages, page, row, position, chunk, chunks, first_chunk, first, blocks


@gluon.jit
def norms_of(q_weight, k_weight, GROUP: gl.constexpr, D: gl.constexpr, N: gl.constexpr):
    """Both halves of what each row is multiplied by."""
    HALF: gl.constexpr = D // 2
    is_query = (gl.arange(0, 8, layout=gl.SliceLayout(1, N)) < GROUP)[:, None]
    pair = gl.arange(0, HALF, layout=gl.SliceLayout(0, N))
    low = gl.where(is_query, gl.load(q_weight + pair)[None, :], gl.load(k_weight + pair)[None, :])
    high = gl.where(is_query, gl.load(q_weight + HALF + pair)[None, :], gl.load(k_weight + HALF + pair)[None, :])
    return low, high


@gluon.jit
def bring_near(table, at, NUMBERS: gl.constexpr):
    """To L2: what is read behind the wait may still be written by then, and a prefetch takes no value."""
    lanes: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    near = gl.arange(0, 128, layout=lanes) * 8 % NUMBERS
    gl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [(table + at + near).to(gl.int64)],
        dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def places_of(
    qkv, cos, sin, row, key_head, H: gl.constexpr, K: gl.constexpr, D: gl.constexpr, N: gl.constexpr
):  # fmt: skip
    """Where the first halves of a key head's rows lie, and their turns."""
    GROUP: gl.constexpr = H // K
    rows, pair = gl.arange(0, 8, layout=gl.SliceLayout(1, N)), gl.arange(0, D // 2, layout=gl.SliceLayout(0, N))
    head = gl.where(rows < GROUP, key_head * GROUP + rows, H + (rows - GROUP) * K + key_head)
    head = gl.where(rows < GROUP + 2, head, 0)
    at_turn = row.to(gl.int64) * (D // 2) + pair
    return qkv + (row.to(gl.int64) * (H + 2 * K) + head)[:, None] * D + pair[None, :], cos + at_turn, sin + at_turn


@gluon.jit
def given_at(places, D: gl.constexpr):
    """Both halves as projected, and the turns."""
    return gl.load(places[0]), gl.load(places[0] + D // 2), gl.load(places[1]), gl.load(places[2])


@gluon.jit
def turned_heads(given, norms, eps, GROUP: gl.constexpr, D: gl.constexpr, NORMED: gl.constexpr, N: gl.constexpr):
    """Both halves [8, D / 2] of a key head's rows, as `rope.turn_group` makes them."""
    is_value = (gl.arange(0, 8, layout=gl.SliceLayout(1, N)) == GROUP + 1)[:, None]
    a, b, c, s = given[0].to(gl.float32), given[1].to(gl.float32), given[2][None, :], given[3][None, :]
    x, z = a, b
    if NORMED:
        width = gl.full([8], D * 1.0, gl.float32, gl.SliceLayout(1, N))
        mean = gl.div_rn(gl.sum(a * a, 1) + gl.sum(b * b, 1), width)
        factor = gl.div_rn(gl.full([8], 1.0, gl.float32, gl.SliceLayout(1, N)), gl.sqrt_rn(mean + eps))[:, None]
        x, z = a * factor * norms[0], b * factor * norms[1]
    first = gl.where(is_value, a, x * c - z * s)
    second = gl.where(is_value, b, z * c + x * s)
    return first, second


@gluon.jit
def store_new(
    first, second, k, v, page, offset, key_head, GROUP: gl.constexpr, K: gl.constexpr, D: gl.constexpr, N: gl.constexpr
):  # fmt: skip
    """The new key and value to their slot."""
    HALF: gl.constexpr = D // 2
    rows, pair = gl.arange(0, 8, layout=gl.SliceLayout(1, N)), gl.arange(0, HALF, layout=gl.SliceLayout(0, N))
    slot = ((page.to(gl.int64) * K + key_head) * 64 + offset) * D
    at = (slot + pair)[None, :] + (rows * 0)[:, None]
    is_key = (rows == GROUP)[:, None] & (pair >= 0)[None, :]
    is_value = (rows == GROUP + 1)[:, None] & (pair >= 0)[None, :]
    kind = k.dtype.element_ty
    gl.store(k + at, first.to(kind), mask=is_key)
    gl.store(k + at + HALF, second.to(kind), mask=is_key)
    gl.store(v + at, first.to(kind), mask=is_value)
    gl.store(v + at + HALF, second.to(kind), mask=is_value)


@gluon.jit
def open_page(v, page, key_head, K: gl.constexpr, D: gl.constexpr, B: gl.constexpr):
    """Zeros to the values' slots behind the first (`rope.zero_rest_of_page`)."""
    rows, dims = gl.arange(0, 64, layout=gl.SliceLayout(1, B)), gl.arange(0, D, layout=gl.SliceLayout(0, B))
    at = ((page.to(gl.int64) * K + key_head) * 64 + rows)[:, None] * D + dims[None, :]
    gl.store(v + at, gl.zeros([64, D], v.dtype.element_ty, B), mask=(rows > 0)[:, None] & (dims >= 0)[None, :])


@gluon.jit
def put_new(tile, k_place, v_place, offset, GROUP: gl.constexpr, D: gl.constexpr, B: gl.constexpr):
    """The new key and value among those of their page, which is in shared memory; a page that is begun holds zeros."""
    if offset == 0:
        v_place.store(gl.zeros([64, D], gl.bfloat16, B))
    rows = gl.arange(0, 8, layout=gl.SliceLayout(1, B))[:, None]
    for i in gl.static_range(8):  # where a slice begins must be known to the compiler
        if offset // 8 == i:
            keys, values = k_place.slice(8 * i, 8, 0), v_place.slice(8 * i, 8, 0)
            keys.store(gl.where(rows == offset % 8, tile.slice(GROUP, 1, 0).load(B), keys.load(B)))
            values.store(gl.where(rows == offset % 8, tile.slice(GROUP + 1, 1, 0).load(B), values.load(B)))


@gluon.jit
def framed(xs, FRAME: gl.constexpr):
    """Of three the last twice: there are tensors of two blocks and of four."""
    if FRAME == 4:
        y = gl.join(gl.join(xs[0], xs[1]), gl.join(xs[2], xs[len(xs) - 1]))
    else:
        y = gl.join(xs[0], xs[1])
    return y


@gluon.jit
def joined(xs, FRAME: gl.constexpr):
    """Tensors [64, 8] of blocks -> [8, blocks, 64]."""
    y = framed(xs, FRAME)
    if FRAME == 4:
        y = y.permute(1, 3, 2, 0).reshape([8, 4, 64])
    else:
        y = y.permute(1, 2, 0)
    return y


@gluon.jit
def together(xs, FRAME: gl.constexpr):
    """Tensors [8] -> [8, blocks]."""
    y = framed(xs, FRAME)
    if FRAME == 4:
        y = y.permute(0, 2, 1).reshape([8, 4])
    return y


@gluon.jit
def apart(x, FRAME: gl.constexpr, R: gl.constexpr):
    """The other way round."""
    if FRAME == 4:
        even, odd = gl.split(x.reshape([8, 2, 2]))
        x0, x2 = gl.split(even)
        x1, x3 = gl.split(odd)
        y = (gl.convert_layout(x0, R), gl.convert_layout(x1, R), gl.convert_layout(x2, R), gl.convert_layout(x3, R))
    else:
        x0, x1 = gl.split(x)
        y = (gl.convert_layout(x0, R), gl.convert_layout(x1, R))  # type: ignore[assignment]
    return y


@gluon.jit
def some_blocks(
    queries, peak, total, out, first_block, left, shared, tile, number, position, scale,
    GROUP: gl.constexpr, D: gl.constexpr, PLACES: gl.constexpr, AT_ONCE: gl.constexpr, FRAME: gl.constexpr,
    S: gl.constexpr, M: gl.constexpr, B: gl.constexpr, BLOCKS: gl.constexpr, R: gl.constexpr, FACTORS: gl.constexpr,
):  # fmt: skip
    """(m, l, O) after AT_ONCE more blocks, of which `left` are there."""
    k_ring, v_ring, bars = shared
    parts = ()
    for i in gl.static_range(AT_ONCE):
        mbarrier.wait(bars.index((number + i) % PLACES), ((number + i) // PLACES) & 1, pred=i < left)
    new = position // 64 - first_block
    if new < AT_ONCE:
        place = (number + new) % PLACES
        put_new(tile, k_ring.index(place), v_ring.index(place), position % 64, GROUP, D, B)
    for i in gl.static_range(AT_ONCE):
        keys = k_ring.index((number + i) % PLACES).load(gl.DotOperandLayout(0, S, 2))
        parts = parts + (mma_v2(keys, queries, gl.zeros([64, 8], gl.float32, S)),)  # type: ignore[assignment]  # noqa: RUF005
    scores = gl.convert_layout(joined(parts, FRAME), M)
    block = gl.arange(0, FRAME, layout=gl.SliceLayout(0, gl.SliceLayout(2, M)))
    key = gl.arange(0, 64, layout=gl.SliceLayout(0, gl.SliceLayout(1, M)))
    block, key = gl.expand_dims(gl.expand_dims(block, 0), 2), gl.expand_dims(gl.expand_dims(key, 0), 1)
    visible = ((first_block + block) * 64 + key <= position) & (block < gl.minimum(left, AT_ONCE))
    scores = gl.where(visible, scores, float("-inf"))
    highest = apart(gl.convert_layout(gl.max(scores, 2), BLOCKS), FRAME, R)
    bases = ()
    shrinks = ()
    for i in gl.static_range(AT_ONCE):
        new_peak = gl.maximum(peak, highest[i] * scale)
        base = gl.where(new_peak == float("-inf"), 0.0, new_peak)
        shrinks = shrinks + (gl.exp2(peak - base),)  # type: ignore[assignment]  # noqa: RUF005
        bases = bases + (base,)  # type: ignore[assignment]  # noqa: RUF005
        peak = new_peak
    below = gl.convert_layout(together(bases, FRAME), gl.SliceLayout(2, M))
    zeros = gl.full([8, FRAME, 64], 0.0, gl.float32, M)
    p = gl.exp2(gl.fma(scores, zeros + scale, zeros - gl.expand_dims(below, 2)))
    weights = gl.allocate_shared_memory(gl.bfloat16, [FRAME * 8, 64], gl.SwizzledSharedLayout(8, 1, 8, [1, 0]))
    factors = gl.allocate_shared_memory(gl.float32, [8, FRAME], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    weights.store(p.to(gl.bfloat16).permute(1, 0, 2).reshape([FRAME * 8, 64]))
    factors.store(together(shrinks, FRAME))
    sums = apart(gl.convert_layout(fold64(p), BLOCKS), FRAME, R)
    for i in gl.static_range(AT_ONCE):
        total = gl.fma(total, shrinks[i], sums[i])
    gl.thread_barrier()
    shrinks = apart(factors.load(FACTORS), FRAME, gl.SliceLayout(0, S))
    for i in gl.static_range(AT_ONCE):
        if i < left:
            own = weights.slice(i * 8, 8, 0).permute((1, 0)).load(gl.DotOperandLayout(1, S, 2))
            values = v_ring.index((number + i) % PLACES).permute((1, 0)).load(gl.DotOperandLayout(0, S, 2))
            out = mma_v2(values, own, out * shrinks[i][None, :])
    return peak, total, out


@gluon.jit(do_not_specialize=["table_width"])
def single_rows(
    qkv, cos, sin, q_weight, k_weight, eps, k, v, pool_k, pool_v, page_table, y, part_peak, part_total, part_out,
    arrived, items, num_items, scale, table_width, v_scale,
    H: gl.constexpr, K: gl.constexpr, D: gl.constexpr, CHUNK: gl.constexpr, PLACES: gl.constexpr,
    AT_ONCE: gl.constexpr, ITEM_SIZE: gl.constexpr, NORMED: gl.constexpr,
):  # fmt: skip
    """Programs (key head, any) take items, as `attention.short_tiles`, which has the same lists and parts."""
    gdc_launch_dependents()
    GROUP: gl.constexpr = H // K
    S: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [4, 1], [16, 8])
    # A row's numbers lie as in rope.py's kernel, because the order of its sum depends on that.
    N: gl.constexpr = gl.BlockedLayout([1, D // 32], [2, 16], [4, 1], [1, 0])
    B: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [4, 1], [1, 0])
    FRAME: gl.constexpr = 2 if AT_ONCE == 2 else 4  # of three blocks' scores one part is empty
    # [8, blocks, 64]: two rows' bits are warps'; a block's maxima and sums stay within a warp.
    M: gl.constexpr = gl.DistributedLinearLayout(
        [[0, 0, 1], [0, 0, 8], [0, 0, 16], [0, 0, 32]],
        [[0, 0, 2], [0, 0, 4], [0, 1, 0], [0, 2 if FRAME == 4 else 0, 0], [4, 0, 0]],
        [[1, 0, 0], [2, 0, 0]], [], [8, FRAME, 64],
    )  # fmt: skip
    BLOCKS: gl.constexpr = gl.DistributedLinearLayout(
        [[0, 1], [0, 2]] if FRAME == 4 else [[0, 1]],
        [[0, 0], [0, 0], [0, 0], [0, 0], [4, 0]], [[1, 0], [2, 0]], [], [8, FRAME],
    )  # fmt: skip
    # A row's factor where S has its column.
    FACTORS: gl.constexpr = gl.DistributedLinearLayout(
        [[1, 0], [0, 1], [0, 2]] if FRAME == 4 else [[1, 0], [0, 1]],
        [[2, 0], [4, 0], [0, 0], [0, 0], [0, 0]], [[0, 0], [0, 0]], [], [8, FRAME],
    )  # fmt: skip
    R: gl.constexpr = gl.DistributedLinearLayout([], [[0], [0], [0], [0], [4]], [[1], [2]], [], [8])
    # What is stored: a warp has whole rows; where it can be seen that the second four are nobody's, they are left out.
    ROWS: gl.constexpr = 4 if GROUP <= 4 and D == 128 else 8
    OUT: gl.constexpr = gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [4, 0]] if D == 128 else [[0, 1], [0, 2]],
        [[0, 4], [0, 8], [0, 16], [0, 32], [0, 64] if D == 128 else [4, 0]], [[1, 0], [2, 0]], [], [8, D],
    )  # fmt: skip
    LIVE: gl.constexpr = OUT if ROWS == 8 else gl.DistributedLinearLayout(
        [[0, 1], [0, 2]], [[0, 4], [0, 8], [0, 16], [0, 32], [0, 64]], [[1, 0], [2, 0]], [], [4, D]
    )  # fmt: skip
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    key_head, own, count = gl.program_id(0), gl.program_id(1), gl.load(num_items)
    k_ring = gl.allocate_shared_memory(gl.bfloat16, [PLACES, 64, D], pool_k.layout)
    v_ring = gl.allocate_shared_memory(gl.bfloat16, [PLACES, 64, D], pool_k.layout)
    tile = gl.allocate_shared_memory(gl.bfloat16, [8, D], plain)
    ends = gl.allocate_shared_memory(gl.float32, [2, 8], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    bars = gl.allocate_shared_memory(gl.int64, [PLACES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(PLACES):
        mbarrier.init(bars.index(i), count=1)
    fence_async_shared()
    pools, shared = (pool_k, pool_v), (k_ring, v_ring, bars)
    number = own * 0
    numbers = fetch(
        own, count, items, page_table, table_width, pools, key_head, shared, number, K, D, CHUNK, PLACES, ITEM_SIZE
    )
    if own >= count:
        return  # at once: those that stay wait for the kernel ahead, so this one doesn't end before it
    norms = (0, 0)
    if NORMED:
        norms = norms_of(q_weight, k_weight, GROUP, D, N)
    bring_near(cos, numbers[2].to(gl.int64) * (D // 2), D // 2)
    bring_near(sin, numbers[2].to(gl.int64) * (D // 2), D // 2)
    places = places_of(qkv, cos, sin, numbers[2], key_head, H, K, D, N)
    gdc_wait()
    given = given_at(places, D)
    rows, dims = gl.arange(0, ROWS, layout=gl.SliceLayout(1, LIVE)), gl.arange(0, D, layout=gl.SliceLayout(0, LIVE))
    live = (rows < GROUP)[:, None] & (dims >= 0)[None, :]
    for item in range(own, count, gl.num_programs(1)):
        pages, page, row, position, chunk, chunks, first_chunk, first, blocks = numbers
        first_half, second_half = turned_heads(given, norms, eps, GROUP, D, NORMED, N)
        tile.store(gl.join(first_half, second_half).permute(0, 2, 1).reshape([8, D]).to(gl.bfloat16))
        queries = tile.permute((1, 0)).load(gl.DotOperandLayout(1, S, 2))
        if position // 64 < first + blocks:
            store_new(first_half, second_half, k, v, page, position % 64, key_head, GROUP, K, D, N)
            if position % 64 == 0:
                open_page(v, page, key_head, K, D, B)
        peak = gl.full([8], float("-inf"), gl.float32, R)
        total = gl.full([8], 0.0, gl.float32, R)
        out = gl.zeros([D, 8], gl.float32, S)
        for n in range(0, blocks, AT_ONCE):
            peak, total, out = some_blocks(
                queries, peak, total, out, first + n, blocks - n, shared, tile, number + n,
                position, scale, GROUP, D, PLACES, AT_ONCE, FRAME, S, M, B, BLOCKS, R, FACTORS,
            )  # fmt: skip
            if n + PLACES < blocks:
                gl.thread_barrier()
                fence_async_shared()
                for block in range(n + PLACES, gl.minimum(n + PLACES + AT_ONCE, blocks)):
                    copy_block(pools, pages, key_head, first + block, shared, number + block, K, D, PLACES)
        number += blocks
        ends.index(0).store(total)
        ends.index(1).store(peak)
        totals = ends.index(0).slice(0, ROWS, 0).load(gl.SliceLayout(1, LIVE))
        peaks = ends.index(1).slice(0, ROWS, 0).load(gl.SliceLayout(1, LIVE))
        seen = gl.convert_layout(out.permute(1, 0), OUT)
        if ROWS == 4:
            seen, _ = gl.split(seen.reshape([2, 4, D]).permute(1, 2, 0))
            seen = gl.convert_layout(seen, LIVE)
        to = y + (row.to(gl.int64) * H + key_head * GROUP + rows)[:, None] * D + dims[None, :]
        if chunks == 1:
            gl.store(to, finished(seen, totals, v_scale, LIVE).to(y.dtype.element_ty), mask=live)
        else:
            part = (item * K + key_head) * 16 + rows
            gl.store(part_peak + part, peaks)
            gl.store(part_total + part, totals)
            gl.store(part_out + part[:, None] * D + dims[None, :], seen, mask=live)
            gl.thread_barrier()
            group = item - chunk + first_chunk
            counter = arrived + group * K + key_head
            if gl.atomic_add(counter, 1, sem="acq_rel") == chunks - 1:
                gl.store(counter, 0)
                gl.thread_barrier()
                parts = (part_peak, part_total, part_out)
                merge_parts(to, parts, group, chunks, key_head, live, v_scale, rows, dims, K, D, ROWS, LIVE)
        if item + gl.num_programs(1) < count:
            gl.thread_barrier()
            fence_async_shared()
            numbers = fetch(
                item + gl.num_programs(1), count, items, page_table, table_width, pools, key_head, shared, number,
                K, D, CHUNK, PLACES, ITEM_SIZE,
            )  # fmt: skip
            given = given_at(places_of(qkv, cos, sin, numbers[2], key_head, H, K, D, N), D)


@gluon.jit
def merge_parts(
    to, parts, first, chunks, key_head, live, v_scale, rows, dims, K: gl.constexpr, D: gl.constexpr,
    ROWS: gl.constexpr, LIVE: gl.constexpr,
):  # fmt: skip
    """As in `attention.py`."""
    peak = gl.full([ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, LIVE))
    total = gl.full([ROWS], 0.0, gl.float32, gl.SliceLayout(1, LIVE))
    out = gl.zeros([ROWS, D], gl.float32, LIVE)
    for chunk in range(chunks):
        part = ((first + chunk) * K + key_head) * 16 + rows
        chunk_peak = gl.load(parts[0] + part, cache_modifier=".cg")
        chunk_total = gl.load(parts[1] + part, cache_modifier=".cg")
        chunk_out = gl.load(parts[2] + part[:, None] * D + dims[None, :], mask=live, other=0.0, cache_modifier=".cg")
        peak, total, out = merged(peak, total, out, chunk_peak, chunk_total, chunk_out, LIVE)
    gl.store(to, finished(out, total, v_scale, LIVE).to(to.dtype.element_ty), mask=live)


MOST = 2
"""Programs for each processor from which on many programs of the general kernel are faster."""


def serves(qkv: Any, kv: Any, turns: Any, num_heads: int) -> bool:
    """Whether this file has a kernel for such heads, and the step is one of few single tokens."""
    work, key_heads, size = kv.ragged.work, kv.k.shape[1], kv.k.shape[3]
    if work is None or not work.is_single or kv.sharing is not None or size not in SIZES:
        return False
    fits = num_heads // key_heads + 2 <= TILE and 2 * turns[0].shape[1] == size
    few = work.segments * key_heads <= MOST * processors(str(qkv.device))
    return bool(fits and few and kv.k.dtype == torch.bfloat16 == qkv.dtype)


def attend_rows(
    qkv: Any, kv: Any, turns: Any, num_heads: int, q_norm: Any, k_norm: Any, eps: float, scale: float, cut: Cut = CUT
) -> Any:
    """[T, (H + 2K) D] -> [T, H D]; this step's keys and values are in the cache."""
    key_heads, size, work, pages = kv.k.shape[1], kv.k.shape[3], kv.ragged.work, kv.ragged.page_table
    y = torch.empty((len(qkv), num_heads * size), dtype=qkv.dtype, device=qkv.device)
    normed = q_norm is not None
    norms = (q_norm, k_norm) if normed else (turns[0], turns[0])
    k_scale, v_scale = kv.scales
    programs = max(1, min(work.short_grid, len(work.short), MOST * processors(str(qkv.device)) // key_heads))
    single_rows[(key_heads, programs)](
        qkv, *turns, *norms, eps, kv.k, kv.v, blocks(kv.k), blocks(kv.v), pages, y, *work.parts, work.short,
        work.counts[4:], scale * k_scale, pages.stride(0), v_scale, num_heads, key_heads, size, CHUNK, cut.places,
        cut.at_once, ITEM, normed, num_warps=4, maxnreg=cut.registers, **EARLY,
    )  # fmt: skip
    return y
