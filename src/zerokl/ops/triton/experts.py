"""Mixtures of experts: rows grouped by expert, two products by blocks of rows, and each token's sum in its own order.

Maths       `ops.experts`
Shapes      x [T, E] bf16, gate_up [X, 2F, E], down [X, E, F] bf16, chosen, weights [T, top] -> y [T, E] f32, or added
            to a residual [T, E] f32 in its place
Rounding    the chain and the gate of `chain.py`; the hidden row once to bf16; an expert's answer stays f32
Order       chains as `chain.py`; acc = fma(weights[t, s], answer, acc) from +0, s as given; then the residual
Same bits   for every T, row position and neighbour: a row meets an expert alone, wherever it lies in a block. Which
            row lies where is found by counting, in the order of rows; it would move no bit otherwise either
Free        rows per block, tiles (tests/gpu/test_experts.py; `admit.admit_experts` on the machine itself)

    pairs (token, rank) ─count─▶ rows per expert ─place─▶ blocks of ROWS pairs of one expert, padded with -1
                                                         block: x rows ─▶ hidden rows ─▶ answers of pairs ─▶ y
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from zerokl.ops.choices import REFERENCE, Schedule, by_blocks, dividing
from zerokl.ops.matrix import LeafExperts
from zerokl.ops.triton.chain import BY_BLOCKS, one_block, scaled
from zerokl.ops.triton.leaves import fold_leaves
from zerokl.ops.triton.numbers import EARLY, EXACT, NARROW, begin
from zerokl.ops.triton.packed import unpacked
from zerokl.ops.triton.swiglu import gate

STEP = 1024
"""Pairs that a program looks at at a time."""
FEW = Schedule(16, 64, 128, True, 4, 4)
SOME = Schedule(64, 128, 64, False, 4, 4)
MANY = Schedule(128, 128, 64, False, 8, 3)


@dataclass(slots=True)
class Mixtures:
    """How mixtures are computed on this machine; filled by `admit.admit_experts` at start."""

    seen: set[tuple[int, int]] = field(default_factory=set)
    """(width, hidden width) of every mixture that was asked for."""
    rejected: set[tuple[int, int, Schedule]] = field(default_factory=set)

    def of(self, pairs: int, num_experts: int, width: int, hidden: int) -> Schedule:
        """By the rows that an expert has on average, if all are asked: shapes only."""
        self.seen.add((width, hidden))
        each = pairs / num_experts
        chosen = FEW if each <= 16 else SOME if each <= 96 else MANY
        return REFERENCE if (width, hidden, chosen) in self.rejected else chosen


MIXTURES = Mixtures()


class Blocks(NamedTuple):
    """Rows by expert, on the device."""

    pairs: Any
    """[blocks, ROWS]: token * top + rank, or -1."""
    experts: Any
    """[blocks]."""
    count: Any
    """[1]: blocks that are there."""
    counts: Any
    """[X]: rows of each expert."""


@triton.jit
def count_rows(chosen, counts, num_pairs, STEP: tl.constexpr):
    begin()
    expert = tl.program_id(0)
    total = tl.zeros([STEP], tl.int32)
    for first in range(0, num_pairs, STEP):
        pair = first + tl.arange(0, STEP)
        total += (tl.load(chosen + pair, mask=pair < num_pairs, other=-1) == expert).to(tl.int32)
    tl.store(counts + expert, tl.sum(total, 0))


@triton.jit
def place_rows(
    chosen, counts, pairs, experts, num_blocks, num_pairs, num_experts,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """The blocks of one expert, behind those of the experts before it."""
    begin()
    expert, ids = tl.program_id(0), tl.arange(0, WIDTH)
    own = (tl.load(counts + ids, mask=ids < num_experts, other=0) + ROWS - 1) // ROWS
    first_block = tl.sum(tl.where(ids < expert, own, 0), 0)
    blocks = tl.sum(tl.where(ids == expert, own, 0), 0)
    if expert == 0:
        tl.store(num_blocks, tl.sum(own, 0))
    at = pairs + first_block.to(tl.int64) * ROWS
    placed = 0
    for first in range(0, num_pairs, STEP):
        pair = first + tl.arange(0, STEP)
        mine = (tl.load(chosen + pair, mask=pair < num_pairs, other=-1) == expert).to(tl.int32)
        tl.store(at + placed + tl.cumsum(mine, 0) - 1, pair, mask=mine > 0)
        placed += tl.sum(mine, 0)
    rest = placed + tl.arange(0, ROWS)
    tl.store(at + rest, -1, mask=rest < blocks * ROWS)
    for block in range(blocks):
        tl.store(experts + first_block + block, expert)


@triton.jit
def expert_chains(
    x, w, factors, y, pairs, experts, num_blocks, N, K, TOP: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, SWAPPED: tl.constexpr, EVEN: tl.constexpr,
    GATED: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """GATED: rows of tokens -> hidden rows as they lie in blocks. Else: those -> answers, where the pairs want them."""
    begin()
    block = tl.program_id(1)
    if block >= tl.load(num_blocks):
        return
    lane = tl.arange(0, ROWS)
    pair = tl.load(pairs + block * ROWS + lane)
    there = pair >= 0
    place = block * ROWS + lane
    row = tl.where(there, pair // TOP if GATED else place, 0).to(tl.int64)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    depth = tl.arange(0, DEPTH)
    first = tl.load(experts + block).to(tl.int64) * (N * (2 if GATED else 1))
    own = w + first * K
    output = first + tl.where(column < N, column, 0)
    scales = factors + output // 16 * tl.cdiv(K, 128)
    up_scales = factors + (output + N) // 16 * tl.cdiv(K, 128)
    at_w = own + tl.where(column < N, column, 0).to(tl.int64)[:, None] * K + depth[None, :]
    at_x = x + row[:, None] * K + depth[None, :]
    shape: tl.constexpr = [COLUMNS, ROWS] if SWAPPED else [ROWS, COLUMNS]
    acc = tl.zeros(shape, tl.float32)
    up = tl.zeros(shape, tl.float32)
    for k in tl.range(0, K, DEPTH):
        if EVEN:
            wt = tl.load(at_w + k)
            xt = tl.load(at_x + k)
        else:
            inside = (k + depth)[None, :] < K
            wt = tl.load(at_w + k, mask=inside, other=0.0)
            xt = tl.load(at_x + k, mask=inside, other=0.0)
        if SCALED == 3:
            acc = one_block(acc, xt, wt, scales + k // 128, SWAPPED)
        else:
            acc = tl.dot(wt, xt.T, acc) if SWAPPED else tl.dot(xt, wt.T, acc)
        if GATED:
            if EVEN:
                ut = tl.load(at_w + N.to(tl.int64) * K + k)
            else:
                ut = tl.load(at_w + N.to(tl.int64) * K + k, mask=(k + depth)[None, :] < K, other=0.0)
            if SCALED == 3:
                up = one_block(up, xt, ut, up_scales + k // 128, SWAPPED)
            else:
                up = tl.dot(ut, xt.T, up) if SWAPPED else tl.dot(xt, ut.T, up)
    if SWAPPED:
        acc, up = acc.T, up.T
    if SCALED == 1 or SCALED == 2:
        acc = scaled(acc, tl.load(factors + output), SCALED)
        if GATED:
            up = scaled(up, tl.load(factors + output + N), SCALED)
    if GATED:
        acc = gate(acc.to(x.dtype.element_ty).to(tl.float32), up.to(x.dtype.element_ty).to(tl.float32))
    to = (place if GATED else tl.where(there, pair, 0)).to(tl.int64)
    mask = there[:, None] & (column < N)[None, :]
    tl.store(y + to[:, None] * N + column[None, :], acc.to(y.dtype.element_ty), mask=mask)


@triton.jit
def sum_answers(
    answers, weights, y, width, weight_stride, TOP: tl.constexpr, ADDED: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    begin()
    row, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    acc = tl.zeros([BLOCK], tl.float32)
    for rank in tl.static_range(TOP):
        weight = tl.zeros([BLOCK], tl.float32) + tl.load(weights + row * weight_stride + rank)
        answer = tl.load(answers + (row * TOP + rank) * width + column, mask=inside, other=0.0)
        acc = tl.fma(weight, answer, acc)
    if ADDED:
        acc = acc + tl.load(y + row * width + column, mask=inside, other=0.0)
    tl.store(y + row * width + column, acc, mask=inside)


def experts(x: Any, gate_up: Any, down: Any, chosen: Any, weights: Any, residual: Any) -> Any:
    """y, or the residual's own memory; `gate_up`, `down`: `ops.DeviceExperts`."""
    y = torch.empty(x.shape, dtype=torch.float32, device=x.device) if residual is None else residual
    return fill(y, x, gate_up, down, chosen, weights, residual is not None)


def parts_of(x: Any, gate_up: LeafExperts, down: LeafExperts, chosen: Any, weights: Any) -> Any:
    """[leaves, T, E] f32: each token's chain over its experts, within each leaf of their width."""
    parts = torch.empty((len(down.leaves), *x.shape), dtype=torch.float32, device=x.device)
    for first, second, part in zip(gate_up.leaves, down.leaves, parts, strict=True):
        fill(part, x, first, second, chosen, weights, False)
    return parts


def fill(y: Any, x: Any, gate_up: Any, down: Any, chosen: Any, weights: Any, added: bool) -> Any:
    """y, filled or added to."""
    if isinstance(down, LeafExperts):
        return fold_leaves(parts_of(x, gate_up, down, chosen, weights), y, None, added)
    (rows, width), top = x.shape, chosen.shape[1]
    schedule = MIXTURES.of(rows * top, len(gate_up), width, down.shape[1])
    answers = answers_of(x, gate_up, down, chosen, schedule)
    sum_answers[(rows, triton.cdiv(width, 1024))](
        answers, weights, y, width, weights.stride(0), top, added, 1024, num_warps=4, **EARLY
    )
    return y


def answers_of(x: Any, gate_up: Any, down: Any, chosen: Any, schedule: Schedule) -> Any:
    """[T * top, E] f32: what each row's experts say, without their weights."""
    (rows, width), hidden, num_experts, top = x.shape, down.shape[1], len(down), chosen.shape[1]
    blocks = blocks_of(chosen, num_experts, schedule.rows)
    between = torch.empty((blocks.pairs.numel(), hidden), dtype=NARROW, device=x.device)
    run_blocks(x, gate_up, between, blocks, hidden, top, schedule, True)
    answers = torch.empty((rows * top, width), dtype=torch.float32, device=x.device)
    run_blocks(between, down, answers, blocks, width, top, schedule, False)
    return answers


def blocks_of(chosen: Any, num_experts: int, rows: int) -> Blocks:
    num_pairs, device = chosen.numel(), chosen.device
    most = num_pairs // rows + min(num_pairs, num_experts)
    counts = torch.empty(num_experts, dtype=torch.int32, device=device)
    pairs, experts, count = (torch.empty(size, dtype=torch.int32, device=device) for size in (most * rows, most, 1))
    blocks = Blocks(pairs, experts, count, counts)
    step = max(16, min(STEP, triton.next_power_of_2(num_pairs)))
    count_rows[(num_experts,)](chosen, counts, num_pairs, step, num_warps=4, **EARLY)
    place_rows[(num_experts,)](
        chosen, counts, *blocks[:3], num_pairs, num_experts, triton.next_power_of_2(num_experts), rows, step,
        num_warps=4, **EARLY,
    )  # fmt: skip
    return blocks


def run_blocks(
    x: Any, weights: Any, y: Any, blocks: Blocks, columns: int, top: int, schedule: Schedule, is_gated: bool
) -> None:
    """Packed experts' numbers are unpacked first: of those alone that have rows."""
    w, factors, mode = weights.values, x, 0  # x: where there are no factors, nothing is read
    if weights.count:
        w, factors, mode = unpacked(w, blocks.counts), w.factors_of_chain, w.scaled
        schedule = by_blocks(schedule._replace(stages=2)) if mode == BY_BLOCKS else schedule
    depth, most = x.shape[1], len(blocks.experts)
    wide = max(schedule.columns // 2, 16) if is_gated else schedule.columns
    step = schedule.depth if mode == BY_BLOCKS else dividing(schedule.depth, depth)
    expert_chains[(triton.cdiv(columns, wide), most)](
        x, w, factors, y, *blocks[:3], columns, depth, top, schedule.rows, wide, step, schedule.swapped,
        depth % step == 0, is_gated, mode, num_warps=schedule.warps, num_stages=schedule.stages, **EXACT,
    )  # fmt: skip
