"""Dummy weights: the real model's names and shapes, sane sizes, the same bits from the same seed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.checkpoints.tiny import make_tiny_llama
from zerokl import checkpoints
from zerokl.errors import CheckpointError, UnsupportedModel


@pytest.mark.parametrize(
    "overrides",
    [{}, {"tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True}, {"torch_dtype": "float32"}],
)
def test_names_shapes_and_types_are_the_real_ones(tmp_path: Path, overrides: dict[str, Any]) -> None:
    folder = make_tiny_llama(tmp_path, 0, **overrides)
    real, dummy = checkpoints.open(folder).tensors, checkpoints.open(folder, load_format="dummy").tensors
    assert {n: (t.shape, t.dtype, t.nbytes) for n, t in real.items()} == {
        n: (t.shape, t.dtype, t.nbytes) for n, t in dummy.items()
    }
    assert all(dummy[name].array().dtype == tensor.array().dtype for name, tensor in real.items())


def test_only_the_config_is_needed(tmp_path: Path) -> None:
    config = make_tiny_llama(tmp_path / "whole", 0) / "config.json"
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "config.json").write_bytes(config.read_bytes())
    checkpoint = checkpoints.open(tmp_path / "bare", load_format="dummy")
    assert checkpoint.tokenizer is None
    assert checkpoint.tensors["model.norm.weight"].float32().tolist() == [1.0] * 64


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_values_are_finite_and_about_one_over_root_columns(tmp_path: Path, dtype: str) -> None:
    folder = make_tiny_llama(tmp_path, 0, torch_dtype=dtype)
    tensor = checkpoints.open(folder, load_format="dummy").tensors["model.layers.0.mlp.gate_proj.weight"]
    size = float(np.sqrt(np.mean(tensor.float32().astype(np.float64) ** 2)))
    assert 0.6 / 8 < size < 1.6 / 8


def test_bits_follow_from_seed_and_name_alone(tmp_path: Path) -> None:
    folder = make_tiny_llama(tmp_path, 0)
    name, other = "model.layers.0.mlp.up_proj.weight", "model.layers.1.mlp.up_proj.weight"
    first = checkpoints.open(folder, load_format="dummy", seed=7)
    again = checkpoints.open(folder, load_format="dummy", seed=7)
    another = checkpoints.open(folder, load_format="dummy", seed=8)
    assert first.tensors[name].array().tobytes() == again.tensors[name].array().tobytes()
    assert first.tensors[name].array().tobytes() != another.tensors[name].array().tobytes()
    assert first.tensors[name].array().tobytes() != first.tensors[other].array().tobytes()
    assert first.digest == again.digest != another.digest
    # The generator's stream is part of the promise: these bits are from the first version.
    assert first.tensors[name].array()[0, :4].tolist() == [15820, 15836, 15795, 48634]


@pytest.mark.parametrize("value", [0, -1, 1.5, "64", None, True, 2**40, [64]])
def test_absurd_config_is_one_error(tmp_path: Path, value: Any) -> None:
    folder = make_tiny_llama(tmp_path, 0)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"hidden_size": value}))
    with pytest.raises(CheckpointError, match=r"config\.json.*hidden_size"):
        checkpoints.open(folder, load_format="dummy")


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    folder = make_tiny_llama(tmp_path, 0, model_type="mamba")
    with pytest.raises(UnsupportedModel, match="mamba"):
        checkpoints.open(folder, load_format="dummy")
