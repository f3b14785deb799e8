"""Log-softmax of rows of logits, without a matrix of probabilities: the CPU's order, so the CPU's bits.

log_sum     `ops.score`: blocks of 1,024 absolute ids, 16 lanes by id mod 16, our own exp2 and log2
top         the first n in the order (logit falling, id rising), as integers: the logit's bits, made monotonic, over
            the complement of the id. All keys differ, so any selection algorithm gives the same
Oracle      ops/reference.py: score, bit for bit
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from zerokl.ops.triton.numbers import EARLY, begin, exp2, fold16, log2

LANES = tl.constexpr(16)
BLOCKS = 8
"""Blocks of 1,024 ids per program. Free."""


@triton.jit
def block_sums(logits, peaks, sums, vocabulary, num_blocks, BLOCKS: tl.constexpr):
    """(max, sum of exp2((x - max) log2 e)) of each block of 1,024 ids; NaN where a number is NaN or +inf."""
    begin()
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1) * BLOCKS + tl.arange(0, BLOCKS)
    first = block[:, None] * 1024 + tl.arange(0, LANES)[None, :]
    peak = tl.full([BLOCKS, LANES], float("-inf"), tl.float32)
    unsound = tl.zeros([BLOCKS, LANES], tl.int32)
    for step in range(64):
        ids = first + step * LANES
        x = tl.load(logits + row * vocabulary + ids, mask=ids < vocabulary, other=float("-inf"))
        peak = tl.maximum(peak, x)
        unsound = unsound | (x != x).to(tl.int32) | (x == float("inf")).to(tl.int32)
    block_peak = tl.max(peak, 1)
    base = tl.where(block_peak == float("-inf"), 0.0, block_peak)
    total = tl.zeros([BLOCKS, LANES], tl.float32)
    for step in range(64):
        ids = first + step * LANES
        x = tl.load(logits + row * vocabulary + ids, mask=ids < vocabulary, other=float("-inf"))
        total += exp2((x - base[:, None]) * 1.4426950408889634)
    block_sum = fold16(total, BLOCKS)
    block_sum = tl.where(tl.max(unsound, 1) > 0, float("nan"), block_sum)
    tl.store(peaks + row * num_blocks + block, block_peak, mask=block < num_blocks)
    tl.store(sums + row * num_blocks + block, block_sum, mask=block < num_blocks)


@triton.jit
def row_log_sums(peaks, sums, factors, log_sums, num_blocks, WIDTH: tl.constexpr):
    """M + log2(S) ln 2, S the chain over blocks; NaN where there is none."""
    begin()
    row = tl.program_id(0).to(tl.int64) * num_blocks
    block = tl.arange(0, WIDTH)
    m = tl.load(peaks + row + block, mask=block < num_blocks, other=float("-inf"))
    peak = tl.max(m, 0)
    factor = tl.where(m == float("-inf"), 0.0, exp2((m - peak) * 1.4426950408889634))
    tl.store(factors + row + block, factor, mask=block < num_blocks)
    tl.debug_barrier()
    total = 0.0
    for number in range(num_blocks):
        total = tl.fma(tl.load(sums + row + number), tl.load(factors + row + number), total)
    answer = peak + log2(total + tl.zeros([1], tl.float32)) * 0.6931471805599453
    answer = tl.where(total > 0.0, answer, float("nan"))
    tl.store(log_sums + tl.program_id(0) + tl.arange(0, 1), answer)


def log_sum(logits: Any) -> Any:
    """[R, V] f32 -> [R] f32: log of the sum of exponentials, NaN for a row that has none."""
    rows, vocabulary = logits.shape
    num_blocks = triton.cdiv(vocabulary, 1024)
    scratch = torch.empty((3, rows, num_blocks), dtype=torch.float32, device=logits.device)
    peaks, sums, factors = scratch[0], scratch[1], scratch[2]
    answer = torch.empty(rows, dtype=torch.float32, device=logits.device)
    block_sums[(rows, triton.cdiv(num_blocks, BLOCKS))](
        logits, peaks, sums, vocabulary, num_blocks, BLOCKS, num_warps=4, **EARLY
    )
    width = triton.next_power_of_2(num_blocks)
    row_log_sums[(rows,)](peaks, sums, factors, answer, num_blocks, width, num_warps=1, **EARLY)
    return answer


def top(logits: Any, count: int) -> Any:
    """[R, count] ids by falling logit, equal ones by rising id."""
    bits = (logits + 0.0).view(torch.int32).to(torch.int64)  # + 0.0: -0 and +0 are one logit
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    ids = torch.arange(logits.shape[1], device=logits.device, dtype=torch.int64)
    keys = (ordered << 32) | (0xFFFFFFFF - ids)
    return 0xFFFFFFFF - (keys.topk(count, dim=1).values & 0xFFFFFFFF)


def logprobs_of(logits: Any, log_sums: Any, ids: Any) -> Any:
    """[R, n] f32: logprobs of the ids [R, n]."""
    return logits.gather(1, ids) - log_sums[:, None]
