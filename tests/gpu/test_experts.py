"""Mixtures: the oracle's choices, and a row's experts give the same bits alone, in any company and by any blocks."""

from __future__ import annotations

import importlib
from itertools import pairwise

import numpy as np
import pytest
import torch

from tests.gpu.device import DEVICE, INTERPRETED, NARROW, normal, relative_error, same
from zerokl import ops
from zerokl.models.weights import Place, experts_on_gpu
from zerokl.ops import reference_hybrid as oracle
from zerokl.ops.choices import REFERENCE
from zerokl.ops.triton import admit
from zerokl.ops.triton.admit import answers_alone, differing, mixture
from zerokl.ops.triton.experts import FEW, MANY, SOME, answers_of

kernels = importlib.import_module("zerokl.ops.triton.experts")
SOFT = [{"normalised": True}, {"normalised": False}, {"normalised": True, "scale": 2.5}]
SIGMOID = [{"scores": "sigmoid", "shared": 2, "scale": 8.0}, {"scores": "sigmoid", "shared": 0}]


@pytest.mark.parametrize("rule", [*SOFT, *SIGMOID])
@pytest.mark.parametrize("experts", [10, 130])
def test_routes_have_the_oracles_bits(rule, experts):
    random = np.random.default_rng(experts)
    logits = random.standard_normal((6, experts + rule.get("shared", 0))).astype(np.float32) * 3
    logits[1, [3, 5, 7]] = logits[1].max() + 1  # a tie
    logits[2] = 0.0
    bias = random.standard_normal(experts).astype(np.float32) if rule.get("shared") else None
    device = None if bias is None else torch.from_numpy(bias).to(DEVICE)
    chosen, weights = ops.route(torch.from_numpy(logits).to(DEVICE), 4, **rule, bias=device)
    wanted, expected = oracle.route(logits, 4, **rule, bias=bias)
    assert chosen.cpu().numpy().tobytes() == wanted.tobytes()
    assert weights.cpu().numpy().tobytes() == expected.tobytes()


def test_a_row_of_nan_goes_to_experts_that_exist():
    logits = torch.full((3, 10), float("nan"), device=DEVICE)
    logits[1] = torch.arange(10.0)
    chosen, _ = ops.route(logits, 3)
    assert chosen.tolist() == [[0, 1, 2], [9, 8, 7], [0, 1, 2]]


WIDTH, HIDDEN = (48, 40) if INTERPRETED else (576, 320)
EXPERTS, TOP = 7, 3


def made(rows: int):
    stacks = [
        ops.DeviceExperts(normal(seed, EXPERTS, *shape) / 8)
        for seed, shape in ((1, (2 * HIDDEN, WIDTH)), (2, (WIDTH, HIDDEN)))
    ]
    random = np.random.default_rng(rows)
    chosen = np.stack([random.permutation(EXPERTS)[:TOP] for _ in range(rows)]).astype(np.int32)
    weights = normal(3, rows, TOP, dtype=torch.float32)
    return normal(4, rows, WIDTH), *stacks, torch.from_numpy(chosen).to(DEVICE), weights


def test_each_row_is_near_float64_and_the_same_alone():
    rows = 20 if INTERPRETED else 200
    x, gate_up, down, chosen, weights = made(rows)
    found = ops.experts(x, gate_up, down, chosen, weights)
    exact = torch.zeros((rows, WIDTH), dtype=torch.float64, device=DEVICE)
    for t in range(rows):
        for s, e in enumerate(chosen[t].tolist()):
            gate, up = (gate_up.values[e].double() @ x[t].double()).chunk(2)
            hidden = gate * gate.sigmoid() * up
            exact[t] += weights[t, s].double() * (down.values[e].double() @ hidden)
    assert relative_error(found, exact) < (1e-5 if INTERPRETED else 2e-2)
    for t in (0, rows // 2, rows - 1):
        row = slice(t, t + 1)
        assert same(ops.experts(x[row], gate_up, down, chosen[row], weights[row]), found[row])
    residual = normal(5, rows, WIDTH, dtype=torch.float32)
    total = residual + found
    assert ops.experts(x, gate_up, down, chosen, weights, residual=residual) is residual
    assert same(residual, total)


def stored(experts):
    """As a checkpoint has them: bfloat16's bits."""
    values = experts.values.cpu()
    return values.numpy() if INTERPRETED else values.view(torch.int16).numpy().view(np.uint16)


def narrow(experts):
    """What the kernels take here: the interpreter's are float32."""
    return ops.LeafExperts(tuple(ops.DeviceExperts(leaf.values.to(NARROW)) for leaf in experts.leaves))


def test_leaves_of_the_width_are_the_tree_over_what_each_leaf_says():
    """And the loader's leaves, cut from the whole, are those."""
    ends = (16, 32, HIDDEN)
    x, gate_up, down, chosen, weights = made(6)
    gate_up, down = (ops.DeviceExperts(one.values.bfloat16().to(NARROW)) for one in (gate_up, down))
    first = experts_on_gpu(stored(gate_up), Place(device=DEVICE, leaves=ends))
    second = experts_on_gpu(stored(down), Place(device=DEVICE, leaves=ends, sums=True))
    first, second = (narrow(one) for one in (first, second))
    found = ops.experts(x, first, second, chosen, weights)
    gates, ups = gate_up.values.chunk(2, 1)
    parts = [
        ops.experts(
            x,
            ops.DeviceExperts(torch.cat((gates[:, start:stop], ups[:, start:stop]), 1).contiguous()),
            ops.DeviceExperts(down.values[:, :, start:stop].contiguous()),
            chosen,
            weights,
        )
        for start, stop in pairwise((0, *ends))
    ]
    assert same(found, (parts[0] + parts[1]) + parts[2])
    assert not same(found, ops.experts(x, gate_up, down, chosen, weights))
    residual = normal(5, 6, WIDTH, dtype=torch.float32)
    total = found + residual
    assert same(ops.experts(x, first, second, chosen, weights, residual=residual), total)


@pytest.mark.parametrize("schedule", [FEW, SOME, MANY])
def test_blocks_of_any_size_give_the_bits_of_rows_alone(schedule):
    rows = 9 if INTERPRETED else 300
    x, gate_up, down, chosen = mixture(WIDTH, HIDDEN, DEVICE, NARROW, rows)
    expected = answers_alone(x, gate_up, down, chosen)
    assert differing(answers_of(x, gate_up, down, chosen, schedule), expected) == 0


def test_an_expert_that_nobody_chose_has_no_block():
    chosen = torch.tensor([[2, 4], [4, 2], [4, 6]], dtype=torch.int32, device=DEVICE)
    blocks = kernels.blocks_of(chosen, 7, 16)
    assert blocks.count.tolist() == [3]
    assert blocks.experts.tolist()[:3] == [2, 4, 6]
    assert [[pair for pair in block if pair >= 0] for block in blocks.pairs.view(-1, 16)[:3].tolist()] == [
        [0, 3],
        [1, 2, 4],
        [5],
    ]


def test_admission_rejects_a_schedule_that_differs(monkeypatch):
    """The planted defect: one kind of blocks adds its answers up in another order."""
    right = answers_of

    def planted(x, gate_up, down, chosen, schedule):
        found = right(x, gate_up, down, chosen, schedule)
        return found.to(torch.bfloat16).float() if schedule == FEW else found

    monkeypatch.setattr(admit, "answers_of", planted)
    monkeypatch.setattr(kernels.MIXTURES, "seen", {(48, 32)})
    monkeypatch.setattr(kernels.MIXTURES, "rejected", set())
    verdicts = admit.admit_experts(DEVICE, NARROW)
    assert [verdict.differing > 0 for verdict in verdicts] == [True, False, False, False]
    assert kernels.MIXTURES.of(4, 8, 48, 32) == REFERENCE
