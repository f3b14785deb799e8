"""Qwen3 against the operations that it is made of, and (marked) against transformers."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from tests.checkpoints.tiny import make_tiny_llama
from tests.models import run
from tests.models.test_goldens import BOUND, errors
from tests.models.test_oracle_live import ORACLE
from tests.models.variants import SEED, questions
from zerokl import checkpoints, models, ops
from zerokl.checkpoints.dummy import open_dummy
from zerokl.config import Config
from zerokl.errors import UnsupportedModel

QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "torch_dtype": "float32"}


@pytest.fixture
def folder(tmp_path):
    return make_tiny_llama(tmp_path / "model", SEED + 2, **QWEN3)


def test_heads_are_normalised_before_they_are_turned_and_values_are_not():
    random = np.random.default_rng(4)
    qkv = random.standard_normal((3, 8 * 16)).astype(np.float32)
    q_norm, k_norm = (random.random(16).astype(np.float32) for _ in range(2))
    pool = [np.zeros((1, 2, 16, 8), np.float32), np.zeros((1, 2, 8, 16), np.float32)]
    rows = np.arange(3, dtype=np.int32)
    kv = ops.LayerKV(*pool, ops.Ragged(rows, rows, np.array([0, 3], np.int32), np.zeros((1, 1), np.int32), 8))
    turns = ops.rope_table(rows, np.array([1.0, 0.5, 0.25, 0.125, 0.1, 0.05, 0.02, 0.01]))
    found = ops.rotate_and_store(qkv, kv, turns, 4, q_norm=q_norm, k_norm=k_norm, norm_eps=1e-5)
    q, k, v = ops.split_heads(qkv, 4, 2)
    assert np.array_equal(found, ops.rope(ops.rms_norm(q, q_norm, 1e-5), *turns))
    turned = ops.rope(ops.rms_norm(k, k_norm, 1e-5), *turns)
    assert np.array_equal(kv.k[0, :, :, :3], turned.transpose(1, 2, 0))
    assert np.array_equal(kv.v[0, :, :3], v.transpose(1, 0, 2))


def test_head_norms_reach_the_logits(folder):
    """Norm weights that aren't 1 move every logit; a model that dropped them would not notice."""
    model = models.load(checkpoints.open(folder), Config())
    before = run.logits(model, [1, 2, 3], [2])
    for layer in model.weights.layers:
        layer.k_norm *= np.float32(1.5)
    assert (run.logits(model, [1, 2, 3], [2]) != before).mean() > 0.9


@pytest.mark.parametrize("keys", [QWEN3, {}])
def test_rows_that_are_asked_about_alone_have_the_bits_of_all(keys, tmp_path):
    model = models.load(checkpoints.open(make_tiny_llama(tmp_path / "model", SEED + 2, **keys)), Config())
    tokens, rows = list(range(1, 40)), [38, 0, 17]
    assert hasattr(model.module, "body")
    assert np.array_equal(run.asked_logits(model, tokens, rows), run.logits(model, tokens, rows))


def test_sliding_windows_are_refused(tmp_path):
    folder = make_tiny_llama(tmp_path / "model", SEED, **QWEN3, use_sliding_window=True)
    with pytest.raises(UnsupportedModel, match="sliding windows"):
        models.load(checkpoints.open(folder), Config())


def test_dummy_weights_have_the_shapes_of_the_family(tmp_path):
    config = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 1,
        "vocab_size": 300,
        "hidden_act": "silu",
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "num_attention_heads": 4,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = models.load(open_dummy(tmp_path, 0, models.tensor_shapes), Config())
    assert model.head_size == 128
    assert model.weights.layers[0].q_norm.shape == (128,)
    assert np.isfinite(run.logits(model, [1, 2, 3], [2])).all()


@pytest.mark.oracle
def test_fresh_weights_give_transformers_logits_and_greedy_tokens(folder, tmp_path):
    model = models.load(checkpoints.open(folder), Config())
    asked = questions(model.vocab_size)
    (tmp_path / "questions.json").write_text(json.dumps([asdict(question) for question in asked]))
    script = Path(__file__).parents[2] / "tools" / "oracle_torch.py"
    command = [ORACLE, script, folder, tmp_path / "questions.json", tmp_path / "answers.npz"]
    subprocess.run(command, check=True, timeout=100)
    with np.load(tmp_path / "answers.npz") as answers:
        for i, question in enumerate(asked):
            found = run.logits(model, question.tokens, question.rows)[:, question.ids]
            assert max(errors(found, answers[f"{i}/float32"], answers[f"{i}/float64"]).values()) <= BOUND
        greedy = run.greedy(model, [asked[0].tokens], asked[0].new_tokens)
        assert greedy == [answers["0/greedy64"].tolist()]
