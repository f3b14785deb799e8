"""Two GPUs: ranks give the bits of one. Skipped, and counted, where there are fewer, or no body for shared sums."""

from __future__ import annotations

import pytest
import torch

from zerokl import LLM
from zerokl.errors import ConfigError

RANKS = 2
PROMPTS = [list(range(5, 300)), list(range(9, 40))]


@pytest.fixture
def ranks() -> int:
    if torch.cuda.device_count() < RANKS:
        pytest.skip(f"needs {RANKS} GPUs, here are {torch.cuda.device_count()}")
    return RANKS


@pytest.mark.device
def test_ranks_on_gpus_give_the_bits_of_one(ranks: int) -> None:
    found = []
    for tp in (1, ranks):
        try:
            llm = LLM(device="cuda", tp=tp, tp_leaves=ranks)
        except ConfigError as error:
            pytest.skip(f"not there yet: {error}")
        with llm:
            outputs = llm.generate(PROMPTS, max_new_tokens=32, logprobs=True, temperature=0)
            found.append((llm.fingerprint, [repr(one) for one in outputs]))
    assert found[0] == found[1]
