"""Inkling's two families of names and configs, its padded vocabulary, its temperature, and what it remembers."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from tests.models import run
from tests.models.families import config_of, family_model, family_questions, tensors_of
from tests.models.memory import MemoryCheckpoint, MemoryTensor
from zerokl import models
from zerokl.config import Config as Options
from zerokl.errors import CheckpointError, UnsupportedModel
from zerokl.models.inkling import temperatures
from zerokl.models.inkling_config import Config
from zerokl.models.inkling_tables import WEIGHTS, hugging_face, interleaved, shared_gate_up, stacked_pairs
from zerokl.models.memory import Conv

CONFIG = config_of("inkling")
QUESTION = family_questions("inkling")[1]


def loaded(tensors: dict[str, np.ndarray], config: dict = CONFIG) -> models.Model:
    return models.load(MemoryCheckpoint(config, {k: MemoryTensor(v) for k, v in tensors.items()}), Options())


def answers(model: models.Model) -> np.ndarray:
    return run.logits(model, QUESTION.tokens, QUESTION.rows)


def released(keys: dict = CONFIG, plain: dict[str, np.ndarray] | None = None) -> dict[str, np.ndarray]:
    """The weights of a family (the golden one), spelt and interleaved as the release has them."""
    plain, config = plain or tensors_of(keys), Config.from_checkpoint(keys)
    found = {}
    for old, new in zip(WEIGHTS, hugging_face("model.", "model.embed_tokens.embed_norm.weight"), strict=True):
        for layer in old.layers(config):
            names = [name for name, _ in old.sources(config, layer)]
            values = [plain[name] for name, _ in new.sources(config, layer)]
            if old.how in (interleaved, stacked_pairs, shared_gate_up):
                gate, up = values if len(values) == 2 else np.split(values[0], 2, axis=-2)
                pairs = np.stack([gate, up], axis=-2)
                values = [pairs.reshape(*gate.shape[:-2], -1, gate.shape[-1])]
            found |= dict(zip(names, values, strict=True))
    return found


def test_the_release_names_give_the_same_bits():
    names = {"model.visual.x.weight": np.ones(3, np.float32), "model.mtp.layers.0.y": np.ones(3, np.float32)}
    assert np.array_equal(answers(loaded(released() | names)), answers(family_model("inkling")))


def test_names_of_the_whole_model_and_the_older_norm_give_the_same_bits():
    plain = tensors_of(CONFIG)
    whole = {name.replace("model.", "model.language_model."): array for name, array in plain.items()}
    whole["model.language_model.embed_norm.weight"] = whole.pop("model.language_model.embed_tokens.embed_norm.weight")
    config = {"architectures": ["InklingForConditionalGeneration"], "text_config": CONFIG}
    assert np.array_equal(answers(loaded(whole, config)), answers(family_model("inkling")))


def test_a_missing_text_tensor_is_an_error():
    tensors = released()
    del tensors["model.llm.layers.1.mlp.gate.bias"]
    with pytest.raises(CheckpointError, match=r"missing: model\.llm\.layers\.1\.mlp\.gate\.bias \[10\]"):
        loaded(tensors)


def test_the_release_config_says_the_same():
    ours = Config.from_checkpoint(CONFIG)
    moved = {"moe_intermediate_size", "layer_types", "mlp_layer_types", "conv_kernel_size", "max_position_embeddings"}
    text = {key: value for key, value in CONFIG.items() if key not in moved} | {
        "dense_intermediate_size": CONFIG["intermediate_size"],
        "intermediate_size": CONFIG["moe_intermediate_size"],
        "local_layer_ids": [0, 2],
        "dense_mlp_idx": 1,
        "sconv_kernel_size": 4,
        "model_max_length": CONFIG["max_position_embeddings"],
        "use_sconv": True,
        "shared_expert_sink": True,
        "q_bias": False,
    }
    theirs = Config.from_checkpoint({"text_config": text, "mtp_config": {}})
    assert all(getattr(ours, field.name) == getattr(theirs, field.name) for field in fields(ours))


def test_ids_of_images_and_sound_are_known_where_the_config_is_the_whole_models():
    assert Config.from_checkpoint(CONFIG).media_ids == ()
    whole = {"text_config": CONFIG, "image_token_id": 280, "audio_token_id": 289}
    assert Config.from_checkpoint(whole).media_ids == ((280, "image"), (289, "audio"))
    released = {"text_config": CONFIG | {"vocab_size": 201024, "unpadded_vocab_size": 200058}}
    assert dict(Config.from_checkpoint(released).media_ids) == {200054: "image", 200053: "audio"}


def test_another_inkling_is_refused():
    with pytest.raises(UnsupportedModel, match="shared_expert_sink"):
        Config.from_checkpoint(CONFIG | {"shared_expert_sink": False})
    with pytest.raises(CheckpointError, match="unpadded_vocab_size 400"):
        Config.from_checkpoint(CONFIG | {"unpadded_vocab_size": 400})


def test_the_padding_of_the_vocabulary_never_shows():
    tensors = tensors_of(CONFIG)
    tensors["lm_head.weight"][290:] = np.nan
    model = loaded(tensors)
    assert model.vocab_size == 290
    assert np.array_equal(answers(model), answers(family_model("inkling")))


def test_the_temperature_is_one_up_to_the_floor_and_then_the_correctly_rounded_logarithm():
    config = Config.from_checkpoint(CONFIG | {"log_scaling_n_floor": 128000})
    assert temperatures(np.array([0, 127999 - 1], np.int32), config) is None
    positions = np.array([5, 127999, 128000, 1048575], np.int32)
    exact = 1 + 0.1 * np.log(np.maximum(1, (positions + 1.0) / 128000))
    assert np.array_equal(temperatures(positions, config), exact.astype(np.float32))


SMALL = {
    "hidden_size": 4096,
    "num_hidden_layers": 42,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "swa_num_attention_heads": 32,
    "swa_num_key_value_heads": 8,
    "swa_head_dim": 128,
    "sliding_window_size": 512,
    "dense_mlp_idx": 2,
    "dense_intermediate_size": 16384,
    "intermediate_size": 2048,
    "vocab_size": 201024,
    "unpadded_vocab_size": 200058,
    "sconv_kernel_size": 4,
}


def test_what_inkling_small_remembers_is_what_its_description_says():
    """2.46 MiB of states per sequence and 168 KiB of keys per token in 16 bits; in the CPU's 32, twice that."""
    memory = Config.from_checkpoint(SMALL).memory
    states = sum(state.state_bytes for layer in memory for state in layer.states if isinstance(state, Conv))
    assert round(states / 2 / 2**20, 2) == 2.46
    keys = [layer.keys for layer in memory if layer.keys]
    assert sum(key.bytes_per_token for key in keys) / 2 == 168 * 1024
    assert sum(key.bytes_per_token for key in keys if key.window) / 2 == 140 * 1024
    assert [key.window for key in keys].count(None) == 7
