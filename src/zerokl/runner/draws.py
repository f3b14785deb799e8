"""What the device needs to know about a step's rows of logits, as integers. No torch."""

from __future__ import annotations

import numpy as np

from zerokl import ops
from zerokl.ops.sample import GREEDY_BELOW
from zerokl.runner.wanted import Wanted

HEAD_COLUMNS = 7
"""Of each row: its number in the step, target, temperature (the float's bits), seed low and high, position, stream."""


def is_plain(draw: ops.Draw) -> bool:
    """Whether the device can draw it: a temperature, and nothing that filters or shifts."""
    params = draw.params
    return (
        draw.mask is None
        and not params.needs_history
        and not params.logit_bias
        and params.top_k <= 0
        and params.top_p >= 1
        and params.min_p <= 0
    )


def head_rows(wanted: Wanted, padded: int) -> np.ndarray:
    """[padded, 7] int32, as `HEAD_COLUMNS` says; rows that draw nothing have temperature 0, padding rows are row 0."""
    table = np.zeros((padded, HEAD_COLUMNS), np.int32)
    table[: len(wanted.rows), 0], table[: len(wanted.rows), 1] = wanted.rows, wanted.targets
    draws = wanted.draws
    temperatures = np.array([draw.params.temperature for draw in draws], np.float32)
    temperatures[temperatures < np.float32(GREEDY_BELOW)] = 0
    table[: len(draws), 2] = temperatures.view(np.int32)
    seeds = np.array([draw.params.seed & (2**64 - 1) for draw in draws], np.uint64)
    table[: len(draws), 3:5] = seeds.view(np.int32).reshape(-1, 2)
    table[: len(draws), 5] = [draw.position for draw in draws]
    table[: len(draws), 6] = [draw.params.stream for draw in draws]
    return table
