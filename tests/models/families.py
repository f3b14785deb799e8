"""Tiny random checkpoints of every architecture besides Llama, made from the models' own weight tables.

A tensor's values depend on the seed and its name alone. They are chosen so that every term of a forward matters: norm
weights far from 1, convolutions and biases as large as what they are added to, routers that disagree.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from tests.checkpoints.tiny import write_safetensors, write_tokenizer
from tests.models.memory import MemoryCheckpoint, MemoryTensor
from tests.models.variants import NEW_TOKENS, Question, tokens
from zerokl import models
from zerokl.config import Config
from zerokl.models.registry import architecture_of
from zerokl.models.weights import W, one_more, taps, vector

SEED = 30
LENGTHS = (31, 150)

COMMON: dict[str, Any] = {
    "torch_dtype": "float32",
    "vocab_size": 288,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
MIXTURE = {"num_experts": 12, "num_experts_per_tok": 4, "moe_intermediate_size": 40}
QWEN3_MOE = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe"} | MIXTURE
GEMMA3 = {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 20,
    "sliding_window": 24,
    "num_hidden_layers": 4,
}

INKLING = {
    "architectures": ["InklingForCausalLM"],
    "model_type": "inkling_text",
    "vocab_size": 304,
    "unpadded_vocab_size": 290,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 24,
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 2,
    "swa_head_dim": 16,
    "sliding_window_size": 20,
    "d_rel": 6,
    "rel_extent": 36,
    "log_scaling_n_floor": 24,
    "log_scaling_alpha": 0.1,
    "layer_types": ["hybrid_sliding", "hybrid", "hybrid_sliding", "hybrid"],
    "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
    "conv_kernel_size": 4,
    "moe_intermediate_size": 40,
    "n_routed_experts": 10,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
    "route_scale": 8.0,
    "logits_mup_width_multiplier": 3.0,
    "rms_norm_eps": 1e-6,
}
LFM2 = {
    "architectures": ["Lfm2ForCausalLM"],
    "model_type": "lfm2",
    "norm_eps": 1e-5,
    "conv_L_cache": 3,
    "layer_types": ["conv", "full_attention", "conv"],
    "block_auto_adjust_ff_dim": False,
}
QWEN3_NEXT = (
    {"architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "norm_topk_prob": True}
    | MIXTURE
    | {
        "num_hidden_layers": 4,
        "shared_expert_intermediate_size": 24,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 20,
        "linear_value_head_dim": 24,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "partial_rotary_factor": 0.25,
    }
)
GRANITE = {
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "model_type": "granitemoehybrid",
    "layer_types": ["mamba", "attention", "mamba"],
    "num_local_experts": 6,
    "num_experts_per_tok": 3,
    "intermediate_size": 40,
    "shared_intermediate_size": 48,
    "mamba_n_heads": 8,
    "mamba_n_groups": 1,
    "mamba_d_state": 20,
    "mamba_d_head": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_chunk_size": 32,
    "mamba_conv_bias": True,
    "position_embedding_type": "nope",
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.6,
    "attention_multiplier": 0.15,
    "logits_scaling": 1.5,
}
GEMMA2 = GEMMA3 | {"architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "query_pre_attn_scalar": 16}
PHI3 = {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "sliding_window": None}
SPREAD_FACTORS = {
    "short_factor": [1.0, 1.1, 1.25, 1.5, 1.5, 1.6],
    "long_factor": [1.0, 1.3, 2.0, 4.5, 9.0, 17.0],
}
"""Of six pairs: three quarters of a head of 16 turn."""
GPT2 = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "n_embd": 64,
    "n_head": 4,
    "n_layer": 3,
    "n_positions": 512,
    "max_position_embeddings": 512,
    "activation_function": "gelu_new",
    "tie_word_embeddings": True,
}
STARCODER2 = {"architectures": ["Starcoder2ForCausalLM"], "model_type": "starcoder2", "norm_epsilon": 1e-4}
QWEN2 = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama-yarn": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "rope_scaling": YARN | {"beta_fast": 8.0},
    },
    "qwen2": QWEN2 | {"tie_word_embeddings": True},
    "qwen2-window-yarn": QWEN2
    | {"use_sliding_window": True, "sliding_window": 40, "max_window_layers": 1, "rope_scaling": YARN},
    "phi3": PHI3 | {"sliding_window": 70},
    "phi3-short": PHI3
    | {
        "partial_rotary_factor": 0.75,
        "max_position_embeddings": 256,
        "original_max_position_embeddings": 256,
        "rope_scaling": {"type": "longrope", "factor": 4.0} | SPREAD_FACTORS,
    },
    "phi3-long": PHI3
    | {
        "partial_rotary_factor": 0.75,
        "original_max_position_embeddings": 16,
        "rope_scaling": {"type": "longrope"} | SPREAD_FACTORS,
        "tie_word_embeddings": True,
    },
    "olmo2": {"architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2"},
    "olmo2-bias": {"architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2", "attention_bias": True},
    "granite": {
        "architectures": ["GraniteForCausalLM"],
        "model_type": "granite",
        "tie_word_embeddings": True,
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.6,
        "attention_multiplier": 0.15,
        "logits_scaling": 1.5,
    },
    "granite-bias": {
        "architectures": ["GraniteForCausalLM"],
        "model_type": "granite",
        "attention_bias": True,
        "mlp_bias": True,
        "residual_multiplier": 0.8,
        "attention_multiplier": 0.2,
    },
    "stablelm": {
        "architectures": ["StableLmForCausalLM"],
        "model_type": "stablelm",
        "use_qkv_bias": True,
        "layer_norm_eps": 1e-4,
        "partial_rotary_factor": 0.25,
    },
    "starcoder2": STARCODER2 | {"sliding_window": 70, "tie_word_embeddings": True},
    "starcoder2-no-bias": STARCODER2 | {"use_bias": False, "sliding_window": None},
    "gpt2": GPT2,
    "gpt2-untied": GPT2 | {"tie_word_embeddings": False, "n_inner": 96, "layer_norm_epsilon": 0.01},
    "gemma2": GEMMA2
    | {"tie_word_embeddings": True, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 8.0, "rope_theta": 1e4},
    "gemma2-uncapped": GEMMA2 | {"attn_logit_softcapping": None, "final_logit_softcapping": None, "rope_theta": 1e4},
    "mistral": {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 70},
    "mistral-no-window": {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": None},
    "mixtral": {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "num_local_experts": 6,
        "num_experts_per_tok": 2,
        "sliding_window": None,
    },
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"},
    "qwen3-moe": QWEN3_MOE | {"norm_topk_prob": True},
    "qwen3-moe-mixed": QWEN3_MOE | {"decoder_sparse_step": 2, "num_hidden_layers": 4, "mlp_only_layers": [1]},
    "gemma3": GEMMA3 | {"sliding_window_pattern": 3, "rope_theta": 1e6, "rope_local_base_freq": 1e4},
    "gemma3-plain-scale": GEMMA3
    | {"query_pre_attn_scalar": 16, "sliding_window_pattern": 3, "rope_theta": 1e6, "rope_local_base_freq": 1e4},
    "gemma3-tied": GEMMA3
    | {
        "tie_word_embeddings": True,
        "final_logit_softcapping": 8.0,
        "layer_types": ["full_attention", "sliding_attention"] * 2,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    },
    "inkling": INKLING,
    "inkling-one-shared": INKLING
    | {
        "n_shared_experts": 1,
        "logits_mup_width_multiplier": 2.0,
        "sliding_window_size": 40,
        "log_scaling_n_floor": None,
        "swa_num_key_value_heads": 1,
        "mlp_layer_types": ["sparse"] * 4,
    },
    "lfm2": LFM2 | {"conv_bias": True, "tie_word_embeddings": True},
    "lfm2-adjusted": LFM2
    | {"layer_types": None, "full_attn_idxs": [1], "block_auto_adjust_ff_dim": True, "block_multiple_of": 16},
    "qwen3-next": QWEN3_NEXT,
    "qwen3-next-mixed": QWEN3_NEXT
    | {"linear_num_key_heads": 4, "mlp_only_layers": [0], "norm_topk_prob": False, "partial_rotary_factor": 0.5},
    "granite-hybrid": GRANITE,
    "granite-hybrid-dense": GRANITE
    | {
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "mamba_n_groups": 2,
        "position_embedding_type": "rope",
        "tie_word_embeddings": True,
    },
}


def config_of(family: str) -> dict[str, Any]:
    return COMMON | FAMILIES[family]


def family_questions(family: str) -> list[Question]:
    """A short sequence with a greedy continuation, and one that is longer than every window, page and extent."""
    config = config_of(family)
    vocab_size = config.get("unpadded_vocab_size", config["vocab_size"])
    ids = list(range(0, vocab_size, 3))
    short, long = (tokens(length, vocab_size) for length in LENGTHS)
    return [
        Question(short, [0, 1, 2, 3, 15, 30], ids, NEW_TOKENS),
        Question(long, [23, 24, 25, 63, 64, 69, 70, 71, 127, 128, 149], ids),
    ]


def names_of(family: str) -> Collection[str]:
    return {ORIGINAL_NAMES[family]} if family in ORIGINAL_NAMES else ()


def tensors_of(config: dict[str, Any], seed: int = SEED, names: Collection[str] = ()) -> dict[str, np.ndarray]:
    """float32 tensors by checkpoint name, for the config's architecture; `names` may choose among naming schemes."""
    _, module = architecture_of(config)
    model_config = module.Config.from_checkpoint(config)
    return {
        name: values(row, name, shape, seed)
        for row in models.weight_tables(module, names)[0]
        for layer in row.layers(model_config)
        for name, shape in row.sources(model_config, layer)
    }


ORIGINAL_NAMES: dict[str, str] = {}
"""Families whose tensors have the names of another scheme: one of them."""

GAINS = {
    "embed": 1.5,
    "rel_logits": 4.0,
    "q_proj": 2.0,
    "k_proj": 2.0,
    "lm_head": 4.0,
    "gate.weight": 3.0,
    "router": 3.0,
    "c_attn": 2.0,
    "wte": 1.5,
}
"""Of matrices, by a part of their name; others have 1. Times N(0, 1 / columns)."""


def values(row: W, name: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    random = np.random.default_rng(int.from_bytes(sha256(f"{seed}:{name}".encode()).digest()[:8], "little"))
    normal = random.standard_normal(shape)
    if "global_scale" in name:
        return (1 + 0.2 * normal).astype(np.float32)
    if row.how in (vector, one_more, taps):
        if "norm" in name or ".ln_" in name:
            centre = 0.0 if row.how is one_more else 1.0
            return (centre + 0.3 * normal).astype(np.float32)
        return (0.4 * normal).astype(np.float32)
    gain = next((gain for part, gain in GAINS.items() if part in name), 1.0)
    return (gain * normal / np.sqrt(shape[-1])).astype(np.float32)


def make_family(folder: Path, family: str, seed: int = SEED, **overrides: Any) -> Path:
    """A checkpoint folder as Hugging Face writes it, without a tokenizer; `overrides` replace keys of the config."""
    folder.mkdir(parents=True, exist_ok=True)
    config = config_of(family) | overrides
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    write_safetensors(folder / "model.safetensors", tensors_of(config, seed, names_of(family)))
    return folder


def servable_family(folder: Path, family: str, **overrides: Any) -> Path:
    """The same with a byte-level tokenizer, so that a server takes text too."""
    make_family(folder, family, **overrides)
    write_tokenizer(folder, config_of(family))
    return folder


def family_model(family: str, seed: int = SEED, dtype: str = "auto", **overrides: Any) -> models.Model:
    config = config_of(family) | overrides
    tensors = {name: MemoryTensor(array) for name, array in tensors_of(config, seed, names_of(family)).items()}
    return models.load(MemoryCheckpoint(config, tensors), Config(dtype=dtype))
