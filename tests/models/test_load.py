"""From a checkpoint's config to a model: what is refused, and how the refusal helps."""

from __future__ import annotations

import sys

import pytest

from tests.models.memory import MemoryTensor, tiny_checkpoint, tiny_model
from zerokl import models
from zerokl.config import Config
from zerokl.errors import CheckpointError, ConfigError, UnsupportedModel


def test_a_model_answers_what_a_runner_asks():
    model = tiny_model()
    assert (model.num_layers, model.num_kv_heads, model.head_size) == (2, 2, 16)
    assert (model.architecture, model.vocab_size, model.context_length) == ("LlamaForCausalLM", 284, 4096)


def test_an_unknown_architecture_is_refused_with_the_nearest():
    checkpoint = tiny_checkpoint(architectures=["LlamoForCausalLM"])
    with pytest.raises(UnsupportedModel, match=r"'LlamoForCausalLM' isn't supported; .*nearest: LlamaForCausalLM"):
        models.load(checkpoint, Config())


@pytest.mark.parametrize("architectures", [None, [], "LlamaForCausalLM", [7]])
def test_a_config_without_a_list_of_architectures_is_refused(architectures):
    with pytest.raises(CheckpointError, match="architectures"):
        models.load(tiny_checkpoint(architectures=architectures), Config())


def test_quantised_safetensors_are_refused_by_method():
    with pytest.raises(UnsupportedModel, match="'gptq'"):
        models.load(tiny_checkpoint(quantization_config={"quant_method": "gptq"}), Config())


def test_the_context_length_can_be_lowered_but_not_raised():
    assert models.load(tiny_checkpoint(), Config(context_length=100)).context_length == 100
    with pytest.raises(ConfigError, match=r"5000 .* 4096"):
        models.load(tiny_checkpoint(), Config(context_length=5000))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("vocab_size", None, "the config has no vocab_size"),
        ("hidden_size", "64", "hidden_size must be a positive integer, not '64'"),
        ("num_hidden_layers", 0, "num_hidden_layers must be a positive integer, not 0"),
        ("num_attention_heads", True, "num_attention_heads must be a positive integer, not True"),
        ("num_key_value_heads", 3, "num_attention_heads 4 isn't a multiple of 3"),
        ("rms_norm_eps", -1, "rms_norm_eps must be a positive number, not -1"),
        ("mlp_bias", "no", "mlp_bias must be true or false, not 'no'"),
        ("num_hidden_layers", 10**12, "1000000000000 layers, but the checkpoint only 20 tensors"),
        ("rms_norm_eps", float("nan"), "rms_norm_eps must be a positive number, not nan"),
        ("head_dim", 10**12, "1000000000000 rotated numbers per head"),
        ("head_dim", 15, "head_dim 15 isn't a multiple of 2"),
        ("rope_theta", "big", "rope_theta"),
        ("rope_theta", float("inf"), "rope_theta"),
        ("rope_scaling", "linear", "rope_scaling"),
    ],
)
def test_a_config_that_makes_no_sense_is_refused_by_key(key, value, message):
    checkpoint = tiny_checkpoint()
    checkpoint.config[key] = value
    with pytest.raises(CheckpointError, match=message):
        models.load(checkpoint, Config())


def test_another_activation_is_refused():
    with pytest.raises(UnsupportedModel, match="hidden_act 'gelu' isn't supported; supported: silu"):
        models.load(tiny_checkpoint(hidden_act="gelu"), Config())


def test_missing_keys_mean_what_they_mean_to_hugging_face():
    checkpoint = tiny_checkpoint(head_dim=16, num_key_value_heads=4)
    for key in ("head_dim", "num_key_value_heads", "hidden_act", "rope_theta", "attention_bias", "mlp_bias"):
        del checkpoint.config[key]
    model = models.load(checkpoint, Config())
    assert (model.num_kv_heads, model.head_size) == (4, 16)


def test_a_tied_model_drops_its_copy_of_the_embedding_and_old_frequencies():
    checkpoint = tiny_checkpoint()
    checkpoint.tensors["lm_head.weight"] = checkpoint.tensors["model.embed_tokens.weight"]
    checkpoint.tensors["model.layers.1.self_attn.rotary_emb.inv_freq"] = MemoryTensor(
        checkpoint.tensors["model.norm.weight"].stored[:8]
    )
    assert models.load(checkpoint, Config()).weights.head is None


def test_an_untied_model_without_its_head_is_refused():
    checkpoint = tiny_checkpoint(tie_word_embeddings=False)
    del checkpoint.tensors["lm_head.weight"]
    with pytest.raises(CheckpointError, match=r"1 tensors missing: lm_head\.weight \[284, 64\]"):
        models.load(checkpoint, Config())


def test_models_loaded_at_the_same_time_leave_threads_as_they_were():
    usual = sys.getswitchinterval()
    with models.loading(tiny_checkpoint(), Config()) as first:
        second = models.loading(tiny_checkpoint(), Config())
        loaded = second.__enter__()
        assert sys.getswitchinterval() == pytest.approx(usual / 10)
        assert first().vocab_size == loaded().vocab_size
    assert sys.getswitchinterval() == pytest.approx(usual / 10)
    second.__exit__(None, None, None)
    assert sys.getswitchinterval() == pytest.approx(usual)
