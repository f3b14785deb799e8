"""Short convolutions with their states: the oracle's bits in float32, and the same for every cut of a sequence."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.gpu.device import DEVICE, INTERPRETED, NARROW, normal, same
from zerokl import ops
from zerokl.ops import reference_hybrid as oracle
from zerokl.runner.packing import padded

CHANNELS, SLOTS = 40, 9


def step_of(spans: list[tuple[int, int, list[tuple[int, int]]]], rows: int, padding: int = 2) -> ops.DeviceStates:
    """(source, live, [(row of the segment, slot)]) of each segment, whose rows are `rows` / segments each."""
    each, count = rows // len(spans), len(spans)
    arrays = {
        "segment_of_row": np.full(rows + padding, -1, np.int32),
        "row_starts": np.full(count + padding + 1, rows, np.int32),
        "source": np.full(count + padding, -1, np.int32),
        "live": np.full(count + padding, -1, np.int32),
        "write_starts": np.zeros(count + padding + 1, np.int32),
        "writes": np.full((8, 2), 10**6, np.int32),
    }
    padded(arrays["segment_of_row"], np.repeat(np.arange(count, dtype=np.int32), each), -1)
    writes: list[tuple[int, int]] = []
    for number, (source, live, own) in enumerate(spans):
        arrays["row_starts"][number] = number * each
        arrays["source"][number], arrays["live"][number] = source, live
        arrays["write_starts"][number] = len(writes)
        writes += [(number * each + row, slot) for row, slot in own]
    arrays["write_starts"][len(spans) :] = len(writes)
    arrays["writes"][: len(writes)] = np.array(writes, np.int32).reshape(-1, 2)
    return ops.DeviceStates(*(torch.from_numpy(array).to(DEVICE) for array in arrays.values()))


def run(u, taps, pool, spans, **how):
    """Rows of u through a step of `spans`, among padding of NaN."""
    garbage = torch.full((2, u.shape[1]), float("nan"), dtype=u.dtype, device=u.device)
    state = ops.ConvState(pool, step_of(spans, len(u)))
    return ops.convolved(torch.cat((u, garbage)), taps, state, **how)[: len(u)]


def empty_pool(width: int):
    return torch.full((SLOTS, width - 1, CHANNELS), float("nan"), dtype=NARROW, device=DEVICE)


@pytest.mark.parametrize("width", [2, 3, 4])
@pytest.mark.parametrize(("activation", "residual"), [("identity", True), ("silu", False)])
def test_whole_sequences_have_the_oracles_bits(width, activation, residual):
    u, taps = normal(1, 24, CHANNELS), normal(2, width, CHANNELS, dtype=torch.float32)
    bias = normal(3, CHANNELS, dtype=torch.float32)
    how = {"activation": activation, "residual": residual}
    found = run(u, taps, empty_pool(width), [(-1, 3, []), (-1, 5, [])], bias=bias, **how)
    numbers = [array.float().cpu().numpy() for array in (u, taps, bias)]
    previous, starts = np.zeros((2, width - 1, CHANNELS), np.float32), np.array([0, 12, 24], np.int32)
    expected = oracle.short_conv(*numbers[:2], previous, starts, bias=numbers[2], **how)
    assert same(found.cpu(), torch.from_numpy(expected).to(NARROW))


@pytest.mark.parametrize("width", [2, 3, 4])
@pytest.mark.parametrize("piece", [1, 2, 3, 5])
def test_pieces_give_the_bits_of_the_whole_and_leave_its_states(width, piece):
    rows = 12 * piece if not INTERPRETED else 4 * piece
    u, taps = normal(4, rows, CHANNELS), normal(5, width, CHANNELS, dtype=torch.float32)
    pool = empty_pool(width)
    whole = run(u, taps, pool, [(-1, 0, [(piece, 7)])])
    pieces = []
    for start in range(0, rows, piece):
        saved = [(piece, 8)] if start == 0 else []
        pieces.append(run(u[start : start + piece], taps, pool, [(1 if start else -1, 1, saved)]))
    assert same(torch.cat(pieces), whole)
    assert same(pool[0], pool[1])
    assert same(pool[7], pool[8]), "a checkpoint in the middle is the state of a sequence that ends there"
    again = run(u[piece:], taps, pool, [(8, 2, [])])
    assert same(again, whole[piece:]), "from a checkpoint"
    assert same(pool[2], pool[0])
    assert pool[[3, 4, 5, 6]].isnan().all(), "nobody else's slot was touched"


def test_rows_in_float32_are_rounded_alike_from_the_step_and_from_the_state():
    u, taps = normal(6, 12, CHANNELS, dtype=torch.float32), normal(7, 4, CHANNELS, dtype=torch.float32)
    pool = empty_pool(4)
    whole = run(u, taps, pool, [(-1, 0, [])])
    first, second = run(u[:5], taps, pool, [(-1, 1, [])]), run(u[5:], taps, pool, [(1, 1, [])])
    assert same(torch.cat((first, second)), whole)
    assert same(whole, run(u.to(NARROW), taps, pool, [(-1, 2, [])]))
