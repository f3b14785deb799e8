"""Logprobs and draws on the device have the CPU's bits: both are the contract's own functions of float32 logits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.gpu.device import DEVICE, INTERPRETED
from zerokl import ops
from zerokl.ops.triton import sample, score
from zerokl.types import LogprobSpec, SamplingParams

SIZES = (284, 5000) if INTERPRETED else (284, 5000, 49152, 151936)


def logits_of(vocabulary: int) -> np.ndarray:
    """Gaussian; one row with a block of -inf, one with ties for the top, one with both zeros at the top."""
    logits = (np.random.default_rng(vocabulary).standard_normal((5, vocabulary)) * 8).astype(np.float32)
    logits[1, : vocabulary // 2] = -np.inf
    logits[2, [7, vocabulary - 3]] = logits[2].max()
    logits[3] = -np.abs(logits[3]) - 1
    logits[3, [10, 11, 12]] = -0.0, 0.0, -0.0
    return logits


@pytest.mark.parametrize("vocabulary", SIZES)
def test_logprobs_have_the_cpus_bits(vocabulary):
    logits, targets = logits_of(vocabulary), np.array([1, vocabulary - 1, 7, 11, 4], np.int32)
    expected = ops.score(logits, targets, LogprobSpec(6, (3, vocabulary - 1)))
    device = torch.from_numpy(logits).to(DEVICE)
    sums, top = score.log_sum(device), score.top(device, 6)
    ids = torch.tensor([[3, vocabulary - 1]] * 5, device=DEVICE)
    chosen = torch.from_numpy(targets).to(DEVICE).long()[:, None]
    assert top.int().cpu().numpy().tobytes() == expected.top_ids
    for wanted, found in ((expected.chosen, chosen), (expected.top, top), (expected.ids, ids)):
        assert score.logprobs_of(device, sums, found).cpu().numpy().tobytes() == wanted


@pytest.mark.parametrize("vocabulary", SIZES)
def test_draws_are_the_cpus(vocabulary):
    logits = logits_of(vocabulary)
    given = [(0, 1, 0, 4), (1.0, 2**40 + 7, 1, 9), (0.7, 3, 0, 100000), (1.5, 2**64 - 1, 2, 5), (2.0, 9, 0, 4)]
    draws = [ops.Draw(SamplingParams(temperature=t, seed=s, stream=n), p) for t, s, n, p in given]
    temperatures = torch.tensor([draw.params.temperature for draw in draws], device=DEVICE)
    words = [[d.params.seed & 0xFFFFFFFF, d.params.seed >> 32, d.position, d.params.stream] for d in draws]
    words = torch.from_numpy(np.array(words, np.uint32).view(np.int32)).to(DEVICE)
    found = sample.sample(torch.from_numpy(logits).to(DEVICE), temperatures, words)
    assert found.tolist() == ops.sample(logits, draws).tolist()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), None])
def test_a_row_that_has_no_distribution_is_marked_and_no_other(bad):
    logits = torch.from_numpy(logits_of(5000)).to(DEVICE)
    if bad is None:
        logits[2] = -float("inf")
    else:
        logits[2, 4321] = bad
    sums = score.log_sum(logits).isnan().tolist()
    words = torch.zeros((5, 4), dtype=torch.int32, device=DEVICE)
    for temperature in (0.0, 1.0):
        drawn = sample.sample(logits, torch.full((5,), temperature, device=DEVICE), words).tolist()
        assert [one < 0 for one in drawn] == sums == [False, False, True, False, False]
