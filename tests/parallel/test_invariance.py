"""Any number of ranks up to the leaves gives the same tokens and logprobs, also where nothing divides evenly."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from tests.models.families import FAMILIES, config_of, names_of, tensors_of
from tests.models.memory import MemoryCheckpoint, MemoryTensor, tiny_checkpoint
from tests.models.variants import tokens
from tests.parallel.teams import Threads, told
from zerokl.errors import UnsupportedModel
from zerokl.models import gpt2

pytestmark = pytest.mark.slow

LLAMA = {
    "even": {},
    "nine-heads": {"num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 16, "hidden_size": 72},
    "heads-in-pairs": {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 24},
    "one-key-head": {"num_attention_heads": 6, "num_key_value_heads": 1, "head_dim": 16},
    "vocabulary": {"vocab_size": 3333, "intermediate_size": 72, "tie_word_embeddings": True},
    "biases": {"attention_bias": True, "mlp_bias": True, "vocab_size": 2048},
}
"""What is special about each: 9 heads are 3 + 2 + 2 + 2; heads of 24 are cut in pairs; 3,333 ids are three blocks and
a part, for four ranks; 72 is four steps of 16 and a half."""


@cache
def checkpoint_of(name: str) -> MemoryCheckpoint:
    if name in LLAMA:
        return tiny_checkpoint(**LLAMA[name])
    config = config_of(name)
    tensors = tensors_of(config, names=names_of(name))
    return MemoryCheckpoint(config, {name: MemoryTensor(array) for name, array in tensors.items()})


def answers(name: str, ranks: int, leaves: int, **config: Any) -> list[Any]:
    checkpoint = checkpoint_of(name)
    vocabulary = checkpoint.config.get("unpadded_vocab_size", checkpoint.config["vocab_size"])
    runner = Threads(checkpoint, ranks, leaves, **config)
    try:
        return told(runner, [tokens(90, vocabulary), tokens(23, vocabulary)], 6)
    finally:
        runner.close()


@cache
def alone(name: str, leaves: int) -> list[Any]:
    return answers(name, 1, leaves)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", [*LLAMA, *FAMILIES])
def test_ranks_give_the_bits_of_one(name, ranks):
    assert answers(name, ranks, 4) == alone(name, 4)


@pytest.mark.parametrize("name", ["even", "qwen3-moe", "inkling"])
def test_more_leaves_than_units_leave_ranks_without_heads(name):
    assert answers(name, 4, 16) == alone(name, 16)


def test_leaves_are_in_the_bits():
    assert alone("even", 4) != alone("even", 1)


def test_bf16_weights_are_shared_as_exactly():
    assert answers("inkling", 4, 4, dtype="bfloat16") == answers("inkling", 1, 4, dtype="bfloat16")


def test_a_model_that_does_not_say_what_may_be_cut_is_refused(monkeypatch):
    monkeypatch.delattr(gpt2.Config, "cuts")
    with pytest.raises(UnsupportedModel, match="--tp and --tp-leaves are not there yet for GPT2LMHeadModel"):
        Threads(checkpoint_of("gpt2"), 1, 2)
