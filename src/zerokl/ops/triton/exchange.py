"""How ranks on several GPUs meet: each writes into memory of its own that all can read, says so, and reads the others'.

    slot of rank r    [T, N] f32, or what else the round is about; two halves take turns (`parallel/peers.py`)
    a round           write the slot ─▶ `meet`: a count to every peer, a count from every peer ─▶ read all slots

Maths       fold_parts: y = tree over the first COUNT ranks' parts, + bias, + residual
            side_by_side: columns of every rank, one beside the other; taken_rows: each row from the rank that has it
Rounding    fp32; once, to y's type
Order       the tree over ranks, which is the upper end of the tree over leaves: `leaves.py`. Nobody adds on the way
Same bits   for every size of a message and whoever comes first
Free        programs, block
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from zerokl.ops.triton.numbers import EARLY, begin

MAX_RANKS = 8
"""The tree is written out below."""
MAX_PROGRAMS = 128
"""Of a round: a program waits for the same program of every peer, so all must be on the processors at once."""
BLOCK, LARGE_BLOCK = 1024, 4096


@dataclass(frozen=True, slots=True)
class Meeting:
    """What a kernel needs to know of the group."""

    slots: Any
    """[ranks] int64: where the slots begin."""
    flags: Any
    """[ranks] int64: where each rank's flags begin, [ranks, MAX_PROGRAMS] int32."""
    counters: Any
    """[MAX_PROGRAMS] int32: how many rounds each program has been through here."""
    failed: Any
    """[1] int32 of the host's memory: not 0 once a peer is gone; then nobody waits any more."""
    rank: int
    ranks: int
    waits: bool = True
    """Whether kernels meet; else what lies in the slots has come together before."""

    @property
    def arguments(self) -> tuple[Any, ...]:
        return self.slots, self.flags, self.counters, self.failed

    @property
    def constants(self) -> tuple[Any, ...]:
        return self.rank, self.ranks, MAX_PROGRAMS, self.waits


TELL = tl.constexpr("{ fence.acq_rel.sys; st.release.sys.global.u32 [$1], $2; mov.u32 $0, $2; }")
AWAIT = tl.constexpr("""{
    .reg .u32 seen, stop, polls, often;
    .reg .s32 ahead;
    .reg .pred done;
    mov.u32 polls, 0;
again:
    ld.acquire.sys.global.u32 seen, [$1];
    sub.s32 ahead, seen, $2;
    setp.ge.s32 done, ahead, 0;
    @done bra come;
    add.u32 polls, polls, 1;
    and.b32 often, polls, 255;
    setp.ne.u32 done, often, 0;
    @done bra again;
    ld.relaxed.sys.global.u32 stop, [$3];
    setp.eq.u32 done, stop, 0;
    @done bra again;
come:
    mov.u32 $0, seen;
}""")
"""The word that says that a peer is gone lies in the host's memory, so few polls look at it."""


@triton.jit
def meet(
    flags, counters, failed, RANK: tl.constexpr, RANKS: tl.constexpr, PROGRAMS: tl.constexpr, WAITS: tl.constexpr
):  # fmt: skip
    """Say that what this rank wrote before is there, and wait until every peer has said so of its own."""
    if WAITS:
        program = tl.program_id(0)
        count = tl.load(counters + program) + 1
        for peer in tl.static_range(RANKS):
            if peer != RANK:
                theirs = tl.load(flags + peer).to(tl.pointer_type(tl.int32)) + RANK * PROGRAMS + program
                tl.inline_asm_elementwise(TELL, "=r,l,r", [theirs, count], dtype=tl.int32, is_pure=False, pack=1)
        for peer in tl.static_range(RANKS):
            if peer != RANK:
                ours = tl.load(flags + RANK).to(tl.pointer_type(tl.int32)) + peer * PROGRAMS + program
                tl.inline_asm_elementwise(
                    AWAIT, "=r,l,r,l", [ours, count, failed], dtype=tl.int32, is_pure=False, pack=1
                )
        tl.debug_barrier()
        tl.store(counters + program, count)


@triton.jit
def meet_only(
    slots, flags, counters, failed,
    RANK: tl.constexpr, RANKS: tl.constexpr, PROGRAMS: tl.constexpr, WAITS: tl.constexpr,
):  # fmt: skip
    begin()
    meet(flags, counters, failed, RANK, RANKS, PROGRAMS, WAITS)


@triton.jit
def part_of(slots, at, inside, NUMBER: tl.constexpr):
    part = tl.multiple_of(tl.load(slots + NUMBER).to(tl.pointer_type(tl.float32)), 16)
    return tl.load(part + at, mask=inside, other=0.0, cache_modifier=".cg")


@triton.jit
def part_pair(slots, at, inside, NUMBER: tl.constexpr, COUNT: tl.constexpr):
    total = part_of(slots, at, inside, NUMBER)
    if NUMBER + 1 < COUNT:
        total += part_of(slots, at, inside, NUMBER + 1)
    return total


@triton.jit
def part_four(slots, at, inside, NUMBER: tl.constexpr, COUNT: tl.constexpr):
    total = part_pair(slots, at, inside, NUMBER, COUNT)
    if NUMBER + 2 < COUNT:
        total += part_pair(slots, at, inside, NUMBER + 2, COUNT)
    return total


@triton.jit
def fold_parts(
    slots, flags, counters, failed, bias, y, size, width,
    COUNT: tl.constexpr, BIASED: tl.constexpr, ADDED: tl.constexpr, BLOCK: tl.constexpr,
    RANK: tl.constexpr, RANKS: tl.constexpr, PROGRAMS: tl.constexpr, WAITS: tl.constexpr,
):  # fmt: skip
    begin()
    meet(flags, counters, failed, RANK, RANKS, PROGRAMS, WAITS)
    for first in range(tl.program_id(0) * BLOCK, size, tl.num_programs(0) * BLOCK):
        at = first + tl.arange(0, BLOCK)
        inside = at < size
        total = part_four(slots, at, inside, 0, COUNT)
        if COUNT > 4:
            total += part_four(slots, at, inside, 4, COUNT)
        if BIASED:
            total += tl.load(bias + at % width, mask=inside, other=0.0)
        if ADDED:
            total += tl.load(y + at, mask=inside, other=0.0)
        tl.store(y + at, total.to(y.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def side_by_side(
    slots, flags, counters, failed, y, rows, width,
    BOUNDS: tl.constexpr, BLOCK: tl.constexpr,
    RANK: tl.constexpr, RANKS: tl.constexpr, PROGRAMS: tl.constexpr, WAITS: tl.constexpr,
):  # fmt: skip
    """Blocks of the vocabulary are dealt whole, so a block of BLOCK columns has one owner."""
    begin()
    meet(flags, counters, failed, RANK, RANKS, PROGRAMS, WAITS)
    blocks = tl.cdiv(width, BLOCK)
    for number in range(tl.program_id(0), rows * blocks, tl.num_programs(0)):
        row, column = number // blocks, number % blocks * BLOCK + tl.arange(0, BLOCK)
        for owner in tl.static_range(RANKS):
            own = (column >= BOUNDS[owner]) & (column < BOUNDS[owner + 1])
            if tl.max(own.to(tl.int32), 0) > 0:
                at = row.to(tl.int64) * (BOUNDS[owner + 1] - BOUNDS[owner]) + column - BOUNDS[owner]
                values = part_of(slots, at, own, owner)
                tl.store(y + row.to(tl.int64) * width + column, values, mask=own)


@triton.jit
def own_rows(weight, ids, slot, FIRST: tl.constexpr, LAST: tl.constexpr, E: tl.constexpr, BLOCK: tl.constexpr):
    """Row t of the slot is the weight's row of id t, where this rank has it."""
    begin()
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    token = tl.load(ids + row)
    own = (column < E) & (token >= FIRST) & (token < LAST)
    values = tl.load(weight + (token - FIRST).to(tl.int64) * E + column, mask=own, other=0.0)
    tl.store(slot + row * E + column, values.to(tl.float32), mask=own)


@triton.jit(do_not_specialize=["rows"])
def taken_rows(
    slots, flags, counters, failed, ids, y, rows,
    BOUNDS: tl.constexpr, E: tl.constexpr, BLOCK: tl.constexpr,
    RANK: tl.constexpr, RANKS: tl.constexpr, PROGRAMS: tl.constexpr, WAITS: tl.constexpr,
):  # fmt: skip
    begin()
    meet(flags, counters, failed, RANK, RANKS, PROGRAMS, WAITS)
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        token = tl.load(ids + row)
        for start in range(0, E, BLOCK):
            column = start + tl.arange(0, BLOCK)
            at = tl.cast(row, tl.int64) * E + column
            values = tl.zeros([BLOCK], tl.float32)
            for owner in tl.static_range(RANKS):
                own = (column < E) & (token >= BOUNDS[owner]) & (token < BOUNDS[owner + 1])
                values = tl.where(own, part_of(slots, at, own, owner), values)
            tl.store(y + at, values, mask=column < E)


def fold(meeting: Meeting, shape: tuple[int, int], count: int, bias: Any, y: Any, added: bool) -> Any:
    """y, filled or added to, from the parts [T, N] in the slots of the first `count` ranks."""
    size = shape[0] * shape[1]
    block = LARGE_BLOCK if size > MAX_PROGRAMS * BLOCK else BLOCK
    fold_parts[(programs(triton.cdiv(size, block)),)](
        *meeting.arguments, bias, y, size, shape[1], count, bias is not None, added, block,
        *meeting.constants, num_warps=8 if block == LARGE_BLOCK else 4, **EARLY,
    )  # fmt: skip
    return y


def joined(meeting: Meeting, y: Any, bounds: tuple[int, ...]) -> Any:
    """y [T, N] f32, filled with the columns bounds[r] .. bounds[r + 1] - 1 that lie in the slot of rank r."""
    rows, width = y.shape
    side_by_side[(programs(blocks_of(rows, width)),)](
        *meeting.arguments, y, rows, width, bounds, BLOCK, *meeting.constants, num_warps=4, **EARLY
    )
    return y


def blocks_of(rows: int, width: int) -> int:
    """Of rows that are joined."""
    return rows * -(-width // BLOCK)


def place_rows(weight: Any, ids: Any, slot: Any, first: int, last: int) -> None:
    """The rows of ids from `first` to before `last`, where this rank has them, in their places of the slot."""
    width, block = weight.shape[1], block_of(weight.shape[1])
    grid = len(ids), triton.cdiv(width, block)
    own_rows[grid](weight, ids, slot, first, last, width, block, num_warps=4, **EARLY)


def taken(meeting: Meeting, ids: Any, shape: tuple[int, int], bounds: tuple[int, ...]) -> Any:
    """[T, E] f32: row t from the slot of the rank that has id t."""
    rows, width = shape
    y = torch.empty(shape, dtype=torch.float32, device=ids.device)
    taken_rows[(programs(rows),)](
        *meeting.arguments, ids, y, rows, bounds, width, block_of(width), *meeting.constants, num_warps=4, **EARLY
    )
    return y


def block_of(width: int) -> int:
    return int(min(BLOCK, triton.next_power_of_2(width)))


def only_meet(meeting: Meeting, like: int = 1) -> None:
    """Until here every peer has read what it had to. `like`: blocks of the launch that a peer meets with."""
    meet_only[(programs(like),)](*meeting.arguments, *meeting.constants, num_warps=1, **EARLY)


def programs(blocks: int) -> int:
    return min(MAX_PROGRAMS, blocks)
