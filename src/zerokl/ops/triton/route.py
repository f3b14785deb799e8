"""Routing: the CPU's function of the router's logits, so the CPU's choices and weights.

Maths       `ops.route`
Shapes      logits [T, E + shared] f32, E + shared up to 1,024 -> experts [T, top] int32, weights [T, top + shared] f32
Order       that of `ops.route`: ties to the lower id, sums as written there
Same bits   for every T and row position; one row per program
NaN         a NaN loses to every number: a padding row goes to some expert, and nobody reads what comes out
Oracle      ops/reference_hybrid.py: route, bit for bit (tests/gpu/test_experts.py)
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from zerokl.ops.triton.numbers import EARLY, begin, exp2, fold16, sigmoid, softplus

NO_ID = tl.constexpr(2147483647)


@triton.jit
def route_rows(
    logits, bias, chosen, weights, scale, routed, total, WIDTH: tl.constexpr, TOP: tl.constexpr, SHARED: tl.constexpr,
    SLOTS: tl.constexpr, SIGMOID: tl.constexpr, NORMALISED: tl.constexpr, BIASED: tl.constexpr,
):  # fmt: skip
    begin()
    row = tl.program_id(0).to(tl.int64)
    ids, slots = tl.arange(0, WIDTH), tl.arange(0, SLOTS)
    at = logits + row * total
    x = tl.load(at + ids, mask=ids < routed, other=float("-inf"))
    key = sigmoid(x) if SIGMOID else x
    if BIASED:
        key = key + tl.load(bias + ids, mask=ids < routed, other=0.0)
    key = tl.where(key == key, key, float("-inf"))
    is_open = ids < routed
    picked = routed + slots - TOP
    for slot in tl.static_range(TOP):
        best = tl.max(tl.where(is_open, key, float("-inf")), 0)
        one = tl.min(tl.where(is_open & (key == best), ids, NO_ID), 0)
        is_open = is_open & (ids != one)
        picked = tl.where(slots == slot, one, picked)
    there = slots < TOP + SHARED
    own = tl.load(at + picked, mask=there, other=float("-inf"))
    if SIGMOID:
        own = tl.where(there, -softplus(-own), float("-inf"))
        peak = tl.max(own, 0)
    else:
        peak = tl.max(x, 0)
    powers = exp2((own - peak) * 1.4426950408889634)
    if NORMALISED:
        whole = tl.zeros([1], tl.float32)
        for slot in tl.static_range(TOP + SHARED):
            whole = whole + tl.sum(tl.where(slots == slot, powers, 0.0), 0)
    else:
        lanes = tl.zeros([1, 16], tl.float32)
        lane = tl.arange(0, 16)[None, :]
        for step in range(0, total, 16):
            one_each = tl.load(at + step + lane, mask=step + lane < total, other=float("-inf"))
            power = exp2((one_each - peak) * 1.4426950408889634)
            lanes += tl.where(step + lane < total, power, 0.0)
        whole = fold16(lanes, 1)
    weight = tl.div_rn(powers, tl.zeros([SLOTS], tl.float32) + whole) * scale
    tl.store(chosen + row * TOP + slots, picked, mask=slots < TOP)
    tl.store(weights + row * (TOP + SHARED) + slots, weight, mask=there)


def route(
    logits: Any, top: int, scores: str, normalised: bool, shared: int, bias: Any, scale: float
) -> tuple[Any, Any]:
    """As `ops.route`."""
    rows, total = logits.shape
    chosen = torch.empty((rows, top), dtype=torch.int32, device=logits.device)
    weights = torch.empty((rows, top + shared), dtype=torch.float32, device=logits.device)
    is_sigmoid = scores == "sigmoid"
    route_rows[(rows,)](
        logits, logits if bias is None else bias, chosen, weights, scale, total - shared, total,
        triton.next_power_of_2(total), top, shared, triton.next_power_of_2(top + shared), is_sigmoid,
        normalised or is_sigmoid, bias is not None, num_warps=1, **EARLY,
    )  # fmt: skip
    return chosen, weights
