"""A GGUF Llama is the same model as its Hugging Face folder: config, names, values, rotary order, tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from tests.checkpoints.gguf_files import add_tensor, toy_tokenizer_keys, write_llama_gguf
from tests.checkpoints.tiny import TINY, make_tiny_llama, tiny_weights
from zerokl import checkpoints
from zerokl.checkpoints.gguf_rope import llama3_divisors
from zerokl.errors import CheckpointError, UnsupportedModel

CONFIG = TINY | {"vocab_size": 284}


def write(path: Path, config: dict[str, Any] = CONFIG, kind: str = "F32", **keys: Any) -> Path:
    return write_llama_gguf(path, config, tiny_weights(config, 3), kind, **keys)


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"tie_word_embeddings": False},
        {"num_key_value_heads": 4},
        {"num_key_value_heads": 1, "num_hidden_layers": 12},
    ],
    ids=["tied", "untied", "as many kv heads", "one kv head, two-digit layers"],
)
def test_tensors_are_those_of_the_folder(tmp_path: Path, overrides: dict[str, Any]) -> None:
    folder = checkpoints.open(make_tiny_llama(tmp_path / "hf", 3, torch_dtype="float32", **overrides))
    file = checkpoints.open(write(tmp_path / "x.gguf", CONFIG | overrides))
    assert file.tensors.keys() == folder.tensors.keys()
    for name, tensor in file.tensors.items():
        assert (tensor.name, tensor.shape) == (name, folder.tensors[name].shape)
        assert tensor.array().tobytes() == folder.tensors[name].array().tobytes(), name


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_1"])
def test_stored_types_keep_their_rows_when_unpermuted(tmp_path: Path, kind: str) -> None:
    """Permuting rows and rounding each row commute, so the order of the two must not show."""
    stored = checkpoints.open(write(tmp_path / "x.gguf", kind=kind)).tensors["model.layers.1.self_attn.q_proj.weight"]
    weight = tiny_weights(CONFIG, 3)[stored.name]
    rounded = gguf.quants.quantize(weight, gguf.GGMLQuantizationType[kind])
    expected = gguf.quants.dequantize(rounded, gguf.GGMLQuantizationType[kind])
    assert np.array_equal(stored.float32(), expected)


def test_config_is_that_of_the_folder(tmp_path: Path) -> None:
    folder = make_tiny_llama(tmp_path / "hf", 3, torch_dtype="float32")
    config = json.loads((folder / "config.json").read_text())
    found = checkpoints.open(write(tmp_path / "x.gguf", **toy_tokenizer_keys()))
    assert found.config | found.generation_config == config


def test_a_tokenizer_is_refused_when_it_is_asked_for_if_that_is_to_be_later(tmp_path: Path) -> None:
    bad = write(tmp_path / "x.gguf", **toy_tokenizer_keys() | {"tokenizer__ggml__pre": "unheard of"})
    with pytest.raises(UnsupportedModel, match="unheard of"):
        checkpoints.open(bad)
    later = checkpoints.open(bad, tokenizer_later=True)
    with pytest.raises(UnsupportedModel, match="unheard of"):
        _ = later.tokenizer


def test_rounded_float32_keys_become_the_decimals_they_were(tmp_path: Path) -> None:
    config = checkpoints.open(write(tmp_path / "x.gguf", CONFIG | {"rms_norm_eps": 1e-6, "rope_theta": 5e5})).config
    assert (config["rms_norm_eps"], config["rope_theta"]) == (1e-6, 5e5)


def test_tokenizer_is_that_of_the_folder(tmp_path: Path) -> None:
    folder = checkpoints.open(make_tiny_llama(tmp_path / "hf", 3)).tokenizer
    file = checkpoints.open(write(tmp_path / "x.gguf", **toy_tokenizer_keys())).tokenizer
    assert folder is not None
    assert file is not None
    assert file.chat_template == folder.chat_template
    assert (file.special.bos_id, file.special.eos_ids, file.special.pad_id) == (
        folder.special.bos_id,
        folder.special.eos_ids,
        folder.special.pad_id,
    )
    left, right = json.loads(file.tokenizer_json), json.loads(folder.tokenizer_json)
    assert left["model"]["vocab"] == right["model"]["vocab"] | {t["content"]: t["id"] for t in right["added_tokens"]}
    assert left["added_tokens"] == right["added_tokens"]


def test_llama3_scaling_is_found_again_from_its_divisors(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    _minimal(writer)
    add_tensor(writer, "rope_freqs.weight", llama3_divisors(500000.0, 64, 32.0).astype(np.float32), "F32")
    _close(writer)
    assert checkpoints.open(path).config["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }


def test_divisors_that_are_not_llama3s_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    _minimal(writer)
    add_tensor(writer, "rope_freqs.weight", np.linspace(1, 8, 32, dtype=np.float32), "F32")
    _close(writer)
    with pytest.raises(UnsupportedModel, match="rope_freqs"):
        checkpoints.open(path)


@pytest.mark.parametrize(
    ("keys", "cause"),
    [
        ({"llama__rope__scaling__type": "longrope", "llama__rope__scaling__factor": 2.0}, "longrope"),
        ({"llama__attention__value_length": 8}, "another length"),
    ],
)
def test_what_is_not_supported_says_so(tmp_path: Path, keys: dict[str, Any], cause: str) -> None:
    with pytest.raises(UnsupportedModel, match=cause):
        checkpoints.open(write(tmp_path / "x.gguf", **keys))


def test_another_architecture_says_which_are_read(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "mamba")
    _close(writer)
    with pytest.raises(UnsupportedModel, match=r"'mamba' isn't supported; supported: gemma2, .*; nearest: llama"):
        checkpoints.open(tmp_path / "x.gguf")


def test_unknown_tensors_are_named(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    _minimal(writer)
    add_tensor(writer, "blk.0.attn_gate.weight", np.zeros((2, 2), np.float32), "F32")
    _close(writer)
    with pytest.raises(UnsupportedModel, match=r"blk\.0\.attn_gate\.weight"):
        checkpoints.open(tmp_path / "x.gguf")


def test_missing_key_is_named(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    add_tensor(writer, "token_embd.weight", np.zeros((4, 64), np.float32), "F32")
    _close(writer)
    with pytest.raises(CheckpointError, match=r"llama\.attention\.head_count"):
        checkpoints.open(tmp_path / "x.gguf")


def _minimal(writer: gguf.GGUFWriter) -> None:
    writer.add_block_count(1)
    writer.add_context_length(512)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(32)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(500000.0)
    add_tensor(writer, "token_embd.weight", np.zeros((4, 64), np.float32), "F32")


def _close(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
