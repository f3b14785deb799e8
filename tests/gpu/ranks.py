"""What tests on several GPUs share."""

from __future__ import annotations

import pytest
import torch

from zerokl import LLM
from zerokl.errors import ConfigError

PROMPTS = [list(range(5, 300)), list(range(9, 40))]
NOT_THERE = "--device cuda has one rank and one leaf"
"""The one refusal that skips; any other is a failure."""


def bits_of(tp: int, leaves: int) -> tuple[str, list[str]]:
    """(fingerprint, answers with their logprobs) on so many GPUs. Skips where there are fewer, or no body for sums."""
    if torch.cuda.device_count() < leaves:
        pytest.skip(f"needs {leaves} GPUs, here are {torch.cuda.device_count()}")
    try:
        llm = LLM(device="cuda", tp=tp, tp_leaves=leaves)
    except ConfigError as error:
        if NOT_THERE not in str(error):
            raise
        pytest.skip(f"not there yet: {error}")
    with llm:
        outputs = llm.generate(PROMPTS, max_new_tokens=32, logprobs=True, temperature=0)
        return llm.fingerprint, [repr(one) for one in outputs]
