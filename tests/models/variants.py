"""The tiny Llamas whose logits the oracle has computed, and what it was asked about each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

SEED = 20
LENGTHS = (24, 530)
"""A short sequence, and one that crosses a boundary of attention's chunks (512) and of many pages."""
ROWS = {24: (0, 1, 2, 15, 16, 22, 23), 530: (63, 64, 511, 512, 513, 529)}
"""The first tokens, both sides of a page's and a chunk's end, the last token."""
NEW_TOKENS = 24

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}
"""Trained on 256, so that of 8 frequencies some are kept, some divided and some blended."""

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "untied": {"tie_word_embeddings": False},
    "multi-head": {"num_key_value_heads": 4},
    "multi-query": {"num_key_value_heads": 1},
    "wide-heads": {"head_dim": 32, "hidden_size": 48},
    "attention-bias": {"attention_bias": True},
    "mlp-bias": {"mlp_bias": True},
    "rope-linear": {"rope_scaling": {"type": "linear", "factor": 4.0}},
    "rope-llama3": {"rope_theta": 500000.0, "rope_scaling": LLAMA3},
    "deep-bfloat16": {"num_hidden_layers": 5, "torch_dtype": "bfloat16", "tie_word_embeddings": False},
    "float16": {"torch_dtype": "float16", "rms_norm_eps": 0.01},
}


@dataclass(frozen=True)
class Question:
    """What the oracle computes: logits of `ids` after the tokens up to each of `rows`, and `new_tokens` greedy ones."""

    tokens: list[int]
    rows: list[int]
    ids: list[int]
    new_tokens: int = 0


def overrides_of(variant: str) -> dict[str, Any]:
    return {"torch_dtype": "float32"} | VARIANTS[variant]


def questions(vocab_size: int) -> list[Question]:
    """Two sequences of ids by an integer rule; every third id of the logits is kept."""
    ids = list(range(0, vocab_size, 3))
    return [
        Question(tokens(length, vocab_size), list(ROWS[length]), ids, NEW_TOKENS if length == LENGTHS[0] else 0)
        for length in LENGTHS
    ]


def tokens(length: int, vocab_size: int) -> list[int]:
    """Ids that repeat rarely, with some runs, by squaring."""
    steps = np.arange(length, dtype=np.int64)
    return [int(token) for token in (steps * steps * 7 + steps // 5 * 31 + length) % vocab_size]
