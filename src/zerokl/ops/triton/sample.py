"""The next token of rows that need only a temperature: the CPU's function of the logits, so the CPU's bits.

Maths       `ops.sample` without penalties, bias, mask and filters: argmax(x), or argmax(x / T + Gumbel noise)
Order       none: equal sums go to the lower id
Free        ids per program
Oracle      ops/reference.py: sample, bit for bit. A row with a NaN, a +inf or nothing but -inf draws -1
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from zerokl.ops.triton.numbers import EARLY, begin, gumbel, philox

BLOCK = 4096
NO_ID = tl.constexpr(2147483647)


@triton.jit
def best_of_blocks(
    logits, temperatures, words, best, best_ids, stride, vocabulary, num_blocks, BLOCK: tl.constexpr
):  # fmt: skip
    """The best (value, id) among BLOCK ids of a row; the value is NaN if a logit is NaN or +inf."""
    begin()
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    ids = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits + row * vocabulary + ids, mask=ids < vocabulary, other=float("-inf"))
    temperature = tl.load(temperatures + row * stride)
    unsound = tl.max(((x != x) | (x == float("inf"))).to(tl.int32), 0)
    if temperature > 0.0:
        entry = words + row * stride
        counter = (block * (BLOCK // 4) + tl.arange(0, BLOCK // 4)).to(tl.uint32)
        key_low = tl.load(entry).to(tl.uint32, bitcast=True)
        key_high = tl.load(entry + 1).to(tl.uint32, bitcast=True)
        position = tl.load(entry + 2).to(tl.uint32, bitcast=True)
        stream = tl.load(entry + 3).to(tl.uint32, bitcast=True)
        a, b, c, d = philox(counter, position, stream, key_low, key_high)
        noise = gumbel(tl.join(tl.join(a, c), tl.join(b, d)).reshape([BLOCK]))
        x = tl.div_rn(x, tl.zeros([BLOCK], tl.float32) + temperature) + noise
    x = tl.where(ids < vocabulary, x, float("-inf"))
    value = tl.max(x, 0)
    chosen = tl.min(tl.where((x == value) & (ids < vocabulary), ids, NO_ID), 0)
    tl.store(best + row * num_blocks + block, tl.where(unsound > 0, float("nan"), value))
    tl.store(best_ids + row * num_blocks + block, chosen)


@triton.jit
def best_of_rows(best, best_ids, drawn, num_blocks, WIDTH: tl.constexpr):
    begin()
    row = tl.program_id(0)
    block = tl.arange(0, WIDTH)
    there = block < num_blocks
    value = tl.load(best + row * num_blocks + block, mask=there, other=float("-inf"))
    ids = tl.load(best_ids + row * num_blocks + block, mask=there, other=NO_ID)
    unsound = tl.max((value != value).to(tl.int32), 0)
    highest = tl.max(value, 0)
    chosen = tl.min(tl.where(value == highest, ids, NO_ID), 0)
    sound = (unsound == 0) & (highest > float("-inf"))
    tl.store(drawn + row, tl.where(sound, chosen, -1))


def sample(logits: Any, temperatures: Any, words: Any) -> Any:
    """[R, V] f32, temperatures [R] (0: argmax), words [R, 4] int32 (seed low, high, position, stream) -> ids [R].

    Temperatures and words may be columns of one table.
    """
    if temperatures.stride(0) != words.stride(0):
        temperatures, words = torch.stack([temperatures] * 4, 1)[:, 0], words.contiguous()
    rows, vocabulary = logits.shape
    num_blocks = triton.cdiv(vocabulary, BLOCK)
    best = torch.empty((rows, num_blocks), dtype=torch.float32, device=logits.device)
    best_ids = torch.empty((rows, num_blocks), dtype=torch.int32, device=logits.device)
    drawn = torch.empty(rows, dtype=torch.int32, device=logits.device)
    best_of_blocks[(rows, num_blocks)](
        logits,
        temperatures,
        words,
        best,
        best_ids,
        words.stride(0),
        vocabulary,
        num_blocks,
        BLOCK,
        num_warps=8,
        **EARLY,
    )
    best_of_rows[(rows,)](best, best_ids, drawn, num_blocks, triton.next_power_of_2(num_blocks), num_warps=1, **EARLY)
    return drawn
