"""The GPU's known answers of what hybrid layers add: gates, convolutions, mixtures, recurrences, bent attention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from zerokl import ops
from zerokl.runner.known_answers import numbers

ROWS, WIDTH, HIDDEN, EXPERTS = 5, 192, 96, 6


def run_hybrid_operations(device: str) -> Iterator[tuple[str, list[Any]]]:
    """(name, outputs) of one small call of each operation."""

    def wide(seed: int, *shape: int) -> Any:
        return torch.from_numpy(numbers(seed, *shape)).to(device)

    def narrow(seed: int, *shape: int) -> Any:
        return wide(seed, *shape).to(torch.bfloat16)

    x, gate = narrow(41, ROWS, WIDTH), narrow(42, ROWS, WIDTH) * 8
    yield "gates", [*(ops.gated(x, gate, how) for how in ("identity", "sigmoid", "silu")), ops.geglu(gate)]
    yield "gates", [ops.gelu(gate), ops.scale(x, wide(43, ROWS)), ops.softcap(wide(44, ROWS, WIDTH) * 40, 30.0)]
    yield "layer_norm", [ops.layer_norm(wide(45, ROWS, WIDTH), wide(46, WIDTH), wide(47, WIDTH), 1e-5)]
    pool, step = torch.zeros((4, 3, WIDTH), dtype=torch.bfloat16, device=device), step_of(device)
    yield "convolution", [ops.convolved(x, wide(48, 4, WIDTH), ops.ConvState(pool, step), residual=True), pool]
    rule: dict[str, Any] = {"scores": "sigmoid", "shared": 1, "bias": wide(49, EXPERTS), "scale": 2.5}
    chosen, weights = ops.route(wide(50, ROWS, EXPERTS + 1) * 3, 2, **rule)
    soft = ops.route(wide(51, ROWS, EXPERTS) * 3, 2, normalised=False)
    gate_up = ops.DeviceExperts(narrow(52, EXPERTS, 2 * HIDDEN, WIDTH))
    down = ops.DeviceExperts(narrow(53, EXPERTS, WIDTH, HIDDEN))
    yield "mixture", [chosen, weights, *soft, ops.experts(x, gate_up, down, chosen, weights)]
    yield "recurrence", recurrences(device, narrow, wide)


def step_of(device: str) -> ops.DeviceStates:
    """Two sequences, of 3 rows and of 2; a checkpoint in the first, which begins; the second goes on from slot 2."""
    arrays = ([0, 0, 0, 1, 1], [0, 3, 5], [-1, 2], [0, 1], [0, 1, 1], [[2, 3]])
    return ops.DeviceStates(*(torch.tensor(array, dtype=torch.int32, device=device) for array in arrays))


def recurrences(device: str, narrow: Any, wide: Any) -> list[Any]:
    """Both kinds, with states of 20 by 40 numbers in 4 heads."""
    heads, depth, width = 4, 20, 40
    steps, decay = ops.time_steps(narrow(54, ROWS, heads), wide(55, heads), wide(56, heads))
    pools = [wide(57 + i, 4, heads, depth, width) for i in range(2)]
    key, query = narrow(60, ROWS, 2, depth), narrow(61, ROWS, 2, depth)
    value, beta = narrow(62, ROWS, heads, width), wide(63, ROWS, heads)
    states = [ops.RecurrentState(pool, pool[:0], step_of(device)) for pool in pools]
    shown = ops.gated_delta(query, key, value, decay, beta, states[0])
    seen = ops.selective_scan(value, key, query, steps, decay, wide(64, heads), states[1])
    return [steps, decay, shown, seen, *pools]


def distances(rows: int, heads: int, device: str) -> tuple[Any, Any]:
    """(queries' part, profile) of a bias that reaches 300 tokens."""
    r, profile = numbers(65, rows, heads, 6), np.ascontiguousarray(numbers(66, 6, 300))
    return torch.from_numpy(r).to(device), torch.from_numpy(profile).to(device)
