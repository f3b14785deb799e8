"""Operations by rows: near float64, and the same bits for a row alone and among others."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.gpu.device import DEVICE, INTERPRETED, NARROW, normal, relative_error, same
from zerokl import ops
from zerokl.ops import reference, triton

BOUND = 1e-6 if INTERPRETED else 5e-3
"""bf16 keeps 8 bits: half a unit in the last place is 2e-3 of a number."""


@pytest.mark.parametrize("width", [96, 576, 4096])
def test_rms_norm_is_near_float64_for_any_rows(width):
    x, weight = normal(1, 7, width), normal(2, width, dtype=torch.float32)
    found = triton.rms_norm(x, weight, 1e-5)
    exact = x.double() / (x.double() ** 2).mean(1, keepdim=True).add(1e-5).sqrt() * weight.double()
    assert relative_error(found, exact) < BOUND
    assert same(triton.rms_norm(x[3:4].contiguous(), weight, 1e-5), found[3:4])
    assert same(triton.rms_norm(x.repeat(40, 1), weight, 1e-5), found.repeat(40, 1))


def test_swiglu_is_near_float64_at_both_tails():
    x = torch.cat((normal(3, 5, 600) * 30, normal(4, 5, 600)), 1)
    gate, up = x.double().chunk(2, 1)
    assert relative_error(triton.swiglu(x), gate * torch.sigmoid(gate) * up) < BOUND


def test_embedding_copies_rows_and_resolves_pending_ids():
    weight = ops.DeviceMatrix(normal(5, 50, 96))
    ids = torch.tensor([3, -1, 49, -3], dtype=torch.int32, device=DEVICE)
    drawn = torch.tensor([7, 8, 9], dtype=torch.int32, device=DEVICE)
    from zerokl.ops.triton.embedding import resolve

    resolved = resolve(ids, drawn)
    assert resolved.tolist() == [3, 7, 49, 9]
    assert same(triton.embedding(weight, resolved), weight.values[[3, 7, 49, 9]].float())


def test_rope_tables_have_the_cpus_bits():
    positions = np.array([0, 1, 5, 600, 70000, 131071, 2**20, -1], np.int32)
    frequencies = np.random.default_rng(1).random(33)
    frequencies[0] = 1.0
    expected = reference.rope_table(positions, frequencies)
    found = triton.rope_table(torch.from_numpy(positions).to(DEVICE), frequencies, 1.0)
    for ours, theirs in zip(found, expected, strict=True):
        assert np.array_equal(ours.cpu().numpy().view(np.int32), theirs.view(np.int32))


@pytest.mark.parametrize(("heads", "key_heads", "size"), [(9, 3, 64), (32, 8, 128), (4, 2, 16)])
@pytest.mark.parametrize("normed", [False, True])
def test_heads_are_normed_turned_and_stored(heads, key_heads, size, normed):
    rows, pages = 6, 3
    qkv = normal(6, rows, (heads + 2 * key_heads) * size)
    positions = torch.tensor([0, 64, 65, 700, 5, -1], dtype=torch.int32, device=DEVICE)
    slots = torch.tensor([0, 64, 65, 191, 130, -1], dtype=torch.int32, device=DEVICE)
    pools = [torch.full((pages, key_heads, 64, size), float("nan"), dtype=NARROW, device=DEVICE) for _ in range(2)]
    kv = ops.LayerKV(pools[0], pools[1], ops.Ragged(positions, slots, None, None, 64))
    frequencies = 0.7 ** np.arange(size // 2)
    turns = triton.rope_table(positions, frequencies, 1.0)
    weights = [normal(7 + i, size, dtype=torch.float32) for i in range(2)] if normed else [None, None]
    q = triton.rotate_and_store(qkv, kv, turns, heads, weights[0], weights[1], 1e-6)
    parts = qkv.double().view(rows, -1, size).split([heads, key_heads, key_heads], 1)

    def turned(x, weight):
        if weight is not None:
            x = x / (x**2).mean(-1, keepdim=True).add(1e-6).sqrt() * weight.double()
        a, b = x.chunk(2, -1)
        cos, sin = (table.double()[:, None] for table in turns)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    assert relative_error(q, turned(parts[0], weights[0])) < BOUND
    at = (slots[:5] // 64).long(), slice(None), (slots[:5] % 64).long()
    assert relative_error(pools[0][at], turned(parts[1], weights[1])[:5]) < BOUND
    assert same(pools[1][at], parts[2][:5].to(NARROW))
    assert int(torch.isfinite(pools[0][:, 0, :, 0]).sum()) == 5, "no other key was written"
    filled = {slot: bool(pools[1][slot // 64, :, slot % 64].count_nonzero()) for slot in range(192)}
    zeros = {slot for slot, is_filled in filled.items() if not is_filled}
    assert zeros == {*range(1, 64), *range(66, 128)}, "pages 0 and 1 were begun, page 2 was not; the rest stays NaN"
    kv_alone = ops.LayerKV(pools[0], pools[1], ops.Ragged(positions[3:4], slots[3:4], None, None, 64))
    tables = (turns[0][3:4].contiguous(), turns[1][3:4].contiguous())
    alone = triton.rotate_and_store(qkv[3:4].contiguous(), kv_alone, tables, heads, weights[0], weights[1], 1e-6)
    assert same(alone, q[3:4])
