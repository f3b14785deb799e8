"""Dummy weights: the real model's names and shapes, sane sizes, the same bits from the same seed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.checkpoints.tiny import make_tiny_llama
from tests.models.families import FAMILIES, config_of
from tests.models.run import logits
from zerokl import checkpoints, models
from zerokl.config import Config
from zerokl.errors import CheckpointError, UnsupportedModel


def open_dummy(folder: Path, seed: int = 0) -> checkpoints.Checkpoint:
    return checkpoints.open(folder, load_format="dummy", seed=seed, shapes_of=models.tensor_shapes)


@pytest.mark.parametrize(
    "overrides",
    [{}, {"tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True}, {"torch_dtype": "float32"}],
)
def test_names_shapes_and_types_are_the_real_ones(tmp_path: Path, overrides: dict[str, Any]) -> None:
    folder = make_tiny_llama(tmp_path, 0, **overrides)
    real, dummy = checkpoints.open(folder).tensors, open_dummy(folder).tensors
    assert {n: (t.shape, t.dtype, t.nbytes) for n, t in real.items()} == {
        n: (t.shape, t.dtype, t.nbytes) for n, t in dummy.items()
    }
    assert all(dummy[name].array().dtype == tensor.array().dtype for name, tensor in real.items())


def test_only_the_config_is_needed(tmp_path: Path) -> None:
    config = make_tiny_llama(tmp_path / "whole", 0) / "config.json"
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "config.json").write_bytes(config.read_bytes())
    checkpoint = open_dummy(tmp_path / "bare")
    assert checkpoint.tokenizer is None
    assert checkpoint.tensors["model.norm.weight"].float32().tolist() == [1.0] * 64


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_values_are_finite_and_about_one_over_root_columns(tmp_path: Path, dtype: str) -> None:
    folder = make_tiny_llama(tmp_path, 0, torch_dtype=dtype)
    tensor = open_dummy(folder).tensors["model.layers.0.mlp.gate_proj.weight"]
    size = float(np.sqrt(np.mean(tensor.float32().astype(np.float64) ** 2)))
    assert 0.6 / 8 < size < 1.6 / 8


def test_bits_follow_from_seed_and_name_alone(tmp_path: Path) -> None:
    folder = make_tiny_llama(tmp_path, 0)
    name, other = "model.layers.0.mlp.up_proj.weight", "model.layers.1.mlp.up_proj.weight"
    first = open_dummy(folder, 7)
    again = open_dummy(folder, 7)
    another = open_dummy(folder, 8)
    assert first.tensors[name].array().tobytes() == again.tensors[name].array().tobytes()
    assert first.tensors[name].array().tobytes() != another.tensors[name].array().tobytes()
    assert first.tensors[name].array().tobytes() != first.tensors[other].array().tobytes()
    assert first.digest == again.digest != another.digest
    # The generator's stream is part of the promise: these bits are from the first version.
    assert first.tensors[name].array()[0, :4].tolist() == [15820, 15836, 15795, 48634]


@pytest.mark.parametrize("value", [0, -1, 1.5, "64", None, True, [64]])
def test_absurd_config_is_one_error(tmp_path: Path, value: Any) -> None:
    folder = make_tiny_llama(tmp_path, 0)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"hidden_size": value}))
    with pytest.raises(CheckpointError, match=r"config\.json.*hidden_size"):
        open_dummy(folder)


@pytest.mark.parametrize("sizes", [{"hidden_size": 2**40}, {"num_hidden_layers": 2**40}, {"vocab_size": 2**42}])
def test_a_model_that_nobody_can_mean_is_one_error(tmp_path: Path, sizes: dict[str, int]) -> None:
    folder = make_tiny_llama(tmp_path, 0)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | sizes))
    with pytest.raises(CheckpointError, match=r"config\.json: a model of more than"):
        open_dummy(folder)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_architecture_runs_on_dummy_weights(tmp_path: Path, family: str) -> None:
    """From the config alone: numbers that are neither all equal nor absurd."""
    (tmp_path / "config.json").write_text(json.dumps(config_of(family)))
    model = models.load(open_dummy(tmp_path), Config())
    found = logits(model, range(3, 80), [0, 40, 76])
    assert np.isfinite(found).all()
    spread = found.std(axis=1)
    assert ((spread > 0.01) & (spread < 100)).all(), spread


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    folder = make_tiny_llama(tmp_path, 0, architectures=["MambaForCausalLM"])
    with pytest.raises(UnsupportedModel, match="MambaForCausalLM"):
        open_dummy(folder)
