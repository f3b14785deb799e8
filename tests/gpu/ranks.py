"""What tests on several GPUs share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.checkpoints.tiny import make_tiny_llama
from zerokl import LLM

SHARED_GPUS = pytest.mark.xdist_group("several-gpus")
"""One after the other (`--dist loadgroup`): kernels of two groups that wait for their peers on the same GPUs starve
each other."""
PROMPTS = [[5 + i % 270 for i in range(295)], list(range(9, 40)), [7] * 130]
SHAPE: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "head_dim": 64,
    "num_hidden_layers": 3,
    "vocab_size": 5000,
    "max_position_embeddings": 1024,
}
HEADS: dict[str, dict[str, Any]] = {
    "even": {"num_attention_heads": 8, "num_key_value_heads": 4, "tie_word_embeddings": False},
    "uneven": {"num_attention_heads": 9, "num_key_value_heads": 3},
    "one-key-head": {"num_attention_heads": 8, "num_key_value_heads": 1},
}


def need(gpus: int) -> None:
    if torch.cuda.device_count() < gpus:
        pytest.skip(f"needs {gpus} GPUs, here are {torch.cuda.device_count()}")


def ranks_of(folder: Path, name: str, tp: int, leaves: int, **more: Any) -> LLM:
    path = folder / name
    if not path.exists():
        make_tiny_llama(path, seed=5, **SHAPE, **HEADS[name])
    options = {"max_total_tokens": 16384, "chunked_prefill_size": 256, "max_running_requests": 16}
    return LLM(str(path), device="cuda", tp=tp, tp_leaves=leaves, **options, **more)


def told(llm: LLM) -> list[str]:
    """Drawn in three ways: by the device, greedily and at a temperature, and by the host."""
    ways: list[dict[str, Any]] = [{"temperature": 0}, {"temperature": 0.8}, {"temperature": 0.8, "top_k": 20}]
    found = []
    for way in ways:
        outputs = llm.generate(PROMPTS, max_new_tokens=24, logprobs=True, logprob_start=0, ignore_eos=True, **way)
        found += [repr((one.token_ids, one.logprobs, one.prompt_logprobs)) for one in outputs]
    return found


def bits_of(folder: Path, name: str, tp: int, leaves: int, **more: Any) -> tuple[str, list[str]]:
    """(fingerprint, what each prompt is told) on so many GPUs. Skips where there are fewer."""
    need(tp)
    with ranks_of(folder, name, tp, leaves, **more) as llm:
        return llm.fingerprint, told(llm)
