"""How each GGUF architecture is spelt by Hugging Face: its tensors' names, what is permuted, the config's own keys.

An architecture is one entry of `ARCHITECTURES`. llama.cpp's converter has added the 1 to Gemma's norms, permutes q and
k for its own way of rotating in Llama and Granite, and stores GPT-2's matrices [outputs, inputs].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from msgspec import Struct, field

from zerokl.checkpoints.files import fail
from zerokl.checkpoints.gguf import Gguf
from zerokl.errors import UnsupportedModel


class Keys:
    """The architecture's own keys ("llama.block_count"), with their types checked."""

    def __init__(self, file: Gguf) -> None:
        self.file = file
        self.prefix = str(file.metadata["general.architecture"])

    def __contains__(self, key: str) -> bool:
        return f"{self.prefix}.{key}" in self.file.metadata

    def count(self, key: str, default: int | None = None, minimum: int = 1) -> int:
        value = self._get(key, default)
        if isinstance(value, np.ndarray) and value.size and value.dtype.kind in "iu" and (value == value[0]).all():
            value = int(value[0])  # llama.cpp writes one number per layer where layers may differ
        if type(value) is not int or not minimum <= value < 1 << 31:
            fail(self.file.path, f"{self.prefix}.{key} is {value!r:.60}, not an integer from {minimum}")
        return value

    def per_layer(self, key: str) -> list[int]:
        """One number for each layer."""
        value = self._get(key, None)
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "iu" or (value < 0).any():
            fail(self.file.path, f"{self.prefix}.{key} is {value!r:.60}, not a number per layer")
        return [int(number) for number in value]

    def real(self, key: str, default: float | None = None) -> float:
        """The shortest decimal of the stored float32: 1e-05, not 9.999999747378752e-06."""
        value = self._get(key, default)
        if not isinstance(value, float) or not np.isfinite(value) or value <= 0:
            fail(self.file.path, f"{self.prefix}.{key} is {value!r:.60}, not a positive number")
        return float(str(np.float32(value)))

    def maybe(self, key: str) -> float | None:
        """None where the file is silent."""
        return self.real(key) if key in self else None

    def _get(self, key: str, default: Any) -> Any:
        value = self.file.metadata.get(f"{self.prefix}.{key}", default)
        if value is None:
            fail(self.file.path, f"no metadata key {self.prefix}.{key}")
        return value


More = Callable[[Keys, dict[str, Any]], dict[str, Any]]


class Architecture(Struct, frozen=True):
    """How one GGUF architecture is spelt by Hugging Face."""

    hf_name: str
    model_type: str
    names: Mapping[str, str]
    """GGUF name without "blk.N." -> Hugging Face name, "{i}" for N; both without ".weight" or ".bias"."""
    permuted: Mapping[str, str] = field(default_factory=dict)
    """GGUF names whose rows are permuted for llama.cpp's rotation -> the config key of their number of heads."""
    transposed: frozenset[str] = frozenset()
    """GGUF names of matrices that Hugging Face stores [inputs, outputs]."""
    more: More = lambda keys, config: {}
    """Keys of config.json that only this architecture has, given those that all have."""
    norm_key: str = "attention.layer_norm_rms_epsilon"
    convolutions: frozenset[str] = frozenset()
    """GGUF names of depthwise taps, stored [channels, width]; Hugging Face has [channels, 1, width]."""
    experts: Mapping[str, str] = field(default_factory=dict)
    """GGUF names of tensors that stack all experts -> Hugging Face name of one, "{e}" for its number."""


LLAMA_NAMES = {
    "token_embd": "model.embed_tokens",
    "attn_norm": "model.layers.{i}.input_layernorm",
    "attn_q": "model.layers.{i}.self_attn.q_proj",
    "attn_k": "model.layers.{i}.self_attn.k_proj",
    "attn_v": "model.layers.{i}.self_attn.v_proj",
    "attn_output": "model.layers.{i}.self_attn.o_proj",
    "ffn_norm": "model.layers.{i}.post_attention_layernorm",
    "ffn_gate": "model.layers.{i}.mlp.gate_proj",
    "ffn_up": "model.layers.{i}.mlp.up_proj",
    "ffn_down": "model.layers.{i}.mlp.down_proj",
    "output_norm": "model.norm",
    "output": "lm_head",
}
HEAD_NORMS = {
    "attn_q_norm": "model.layers.{i}.self_attn.q_norm",
    "attn_k_norm": "model.layers.{i}.self_attn.k_norm",
}
NORMS_AFTER = {
    "post_attention_norm": "model.layers.{i}.post_attention_layernorm",
    "post_ffw_norm": "model.layers.{i}.post_feedforward_layernorm",
}
GEMMA_NAMES = LLAMA_NAMES | NORMS_AFTER | {"ffn_norm": "model.layers.{i}.pre_feedforward_layernorm"}
OLMO2_NAMES = {name: hf for name, hf in LLAMA_NAMES.items() if name not in ("attn_norm", "ffn_norm")}
PHI3_NAMES = LLAMA_NAMES | {
    "attn_qkv": "model.layers.{i}.self_attn.qkv_proj",
    "ffn_up": "model.layers.{i}.mlp.gate_up_proj",
}
STARCODER2_NAMES = LLAMA_NAMES | {
    "ffn_up": "model.layers.{i}.mlp.c_fc",
    "ffn_down": "model.layers.{i}.mlp.c_proj",
}
GPT2_NAMES = {
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "attn_norm": "transformer.h.{i}.ln_1",
    "attn_qkv": "transformer.h.{i}.attn.c_attn",
    "attn_output": "transformer.h.{i}.attn.c_proj",
    "ffn_norm": "transformer.h.{i}.ln_2",
    "ffn_up": "transformer.h.{i}.mlp.c_fc",
    "ffn_down": "transformer.h.{i}.mlp.c_proj",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
}
LLAMA_PERMUTED = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}
GEMMA_27B_LAYERS = {"gemma2": 46, "gemma3": 62}
"""The one size whose scores are scaled by hidden size over heads, which GGUF doesn't say."""


def gemma_keys(keys: Keys, config: dict[str, Any]) -> dict[str, Any]:
    """What both Gemmas have."""
    is_27b = config["num_hidden_layers"] == GEMMA_27B_LAYERS[keys.prefix]
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": config["hidden_size"] // config["num_attention_heads"]
        if is_27b
        else config["head_dim"],
        "sliding_window": keys.count("attention.sliding_window"),
        "final_logit_softcapping": keys.maybe("final_logit_softcapping"),
        "norms_are_whole": True,
    }


def gemma2_keys(keys: Keys, config: dict[str, Any]) -> dict[str, Any]:
    return gemma_keys(keys, config) | {"attn_logit_softcapping": keys.maybe("attn_logit_softcapping")}


def gemma3_keys(keys: Keys, config: dict[str, Any]) -> dict[str, Any]:
    return gemma_keys(keys, config) | {
        "sliding_window_pattern": keys.count("attention.sliding_window_pattern", 6),
        "rope_local_base_freq": keys.real("rope.freq_base_swa", 10000.0),
    }


def granite_keys(keys: Keys, config: dict[str, Any]) -> dict[str, Any]:
    stored = {
        "attention_multiplier": "attention.scale",
        "embedding_multiplier": "embedding_scale",
        "residual_multiplier": "residual_scale",
        "logits_scaling": "logit_scale",
    }
    return {name: keys.real(key, 1.0) for name, key in stored.items()}


def phi3_keys(keys: Keys, config: dict[str, Any]) -> dict[str, Any]:
    """A window of 0 is none; files without the key are from before it was written, and some models had a window."""
    return {
        "sliding_window": keys.count("attention.sliding_window", minimum=0) or None,
        "original_max_position_embeddings": keys.count(
            "rope.scaling.original_context_length", config["max_position_embeddings"]
        ),
    }


def starcoder2_keys(keys: Keys, config: dict[str, Any]) -> dict[str, Any]:
    """The converter doesn't write the window, so llama.cpp has none either."""
    return {
        "hidden_act": "gelu_pytorch_tanh",
        "norm_epsilon": config["rms_norm_eps"],
        "use_bias": config["attention_bias"],
        "sliding_window": keys.count("attention.sliding_window", 0, minimum=0) or None,
    }


def stablelm_keys(keys: Keys, config: dict[str, Any]) -> dict[str, Any]:
    return {
        "layer_norm_eps": config["rms_norm_eps"],
        "use_qkv_bias": config["attention_bias"],
        "partial_rotary_factor": config.get("partial_rotary_factor", 1.0),  # a config that is silent means a quarter
        "use_parallel_residual": bool(keys.file.metadata.get(f"{keys.prefix}.use_parallel_residual", False)),
    }


def gpt2_keys(keys: Keys, config: dict[str, Any]) -> dict[str, Any]:
    up = keys.file.tensors.get("blk.0.ffn_up.weight")
    return {
        "n_embd": config["hidden_size"],
        "n_head": config["num_attention_heads"],
        "n_layer": config["num_hidden_layers"],
        "n_positions": config["max_position_embeddings"],
        "n_inner": up.shape[0] if up else config["intermediate_size"],  # the key says 4 n_embd whatever it is
        "activation_function": "gelu_new",
        "layer_norm_epsilon": config["rms_norm_eps"],
    }


LFM2_NAMES = LLAMA_NAMES | {
    "attn_norm": "model.layers.{i}.operator_norm",
    "attn_q_norm": "model.layers.{i}.self_attn.q_layernorm",
    "attn_k_norm": "model.layers.{i}.self_attn.k_layernorm",
    "attn_output": "model.layers.{i}.self_attn.out_proj",
    "shortconv.conv": "model.layers.{i}.conv.conv",
    "shortconv.in_proj": "model.layers.{i}.conv.in_proj",
    "shortconv.out_proj": "model.layers.{i}.conv.out_proj",
    "ffn_norm": "model.layers.{i}.ffn_norm",
    "ffn_gate": "model.layers.{i}.feed_forward.w1",
    "ffn_up": "model.layers.{i}.feed_forward.w3",
    "ffn_down": "model.layers.{i}.feed_forward.w2",
    "token_embd_norm": "model.embedding_norm",
    "output_norm": "model.embedding_norm",
}
QWEN3_MOE_EXPERTS = {
    f"ffn_{name}_exps": f"model.layers.{{i}}.mlp.experts.{{e}}.{name}_proj" for name in ("gate", "up", "down")
}
MIXTRAL_EXPERTS = {
    f"ffn_{name}_exps": f"model.layers.{{i}}.block_sparse_moe.experts.{{e}}.{hf}"
    for name, hf in (("gate", "w1"), ("up", "w3"), ("down", "w2"))
}


def qwen3_moe_keys(keys: Keys, config: dict[str, Any]) -> dict[str, Any]:
    """Every layer is sparse and the weights of the chosen sum to 1: llama.cpp knows no other."""
    return {
        "num_experts": keys.count("expert_count"),
        "num_experts_per_tok": keys.count("expert_used_count"),
        "moe_intermediate_size": keys.count("expert_feed_forward_length"),
        "norm_topk_prob": True,
    }


def lfm2_keys(keys: Keys, config: dict[str, Any]) -> dict[str, Any]:
    """A layer without key heads is a convolution."""
    heads = keys.per_layer("attention.head_count_kv")
    if keys.count("attention.sliding_window", 0, minimum=0):
        raise UnsupportedModel(f"{keys.file.path}: LFM2 with a sliding window")
    return {
        "num_key_value_heads": max(heads),
        "layer_types": ["full_attention" if count else "conv" for count in heads],
        "conv_L_cache": keys.count("shortconv.l_cache"),
        "conv_bias": any(name.endswith("shortconv.conv.bias") for name in keys.file.tensors),
        "norm_eps": config["rms_norm_eps"],
        "block_auto_adjust_ff_dim": False,
    }


def mixtral_keys(keys: Keys, config: dict[str, Any]) -> dict[str, Any]:
    return {
        "num_local_experts": keys.count("expert_count"),
        "num_experts_per_tok": keys.count("expert_used_count"),
    }


LAYER_NORM = "attention.layer_norm_epsilon"
ARCHITECTURES = {
    "gemma2": Architecture("Gemma2ForCausalLM", "gemma2", GEMMA_NAMES, more=gemma2_keys),
    "gemma3": Architecture("Gemma3ForCausalLM", "gemma3_text", GEMMA_NAMES | HEAD_NORMS, more=gemma3_keys),
    "gpt2": Architecture(
        "GPT2LMHeadModel",
        "gpt2",
        GPT2_NAMES,
        transposed=frozenset({"attn_qkv", "attn_output", "ffn_up", "ffn_down"}),
        more=gpt2_keys,
        norm_key=LAYER_NORM,
    ),
    "granite": Architecture("GraniteForCausalLM", "granite", LLAMA_NAMES, LLAMA_PERMUTED, more=granite_keys),
    "lfm2": Architecture(
        "Lfm2ForCausalLM", "lfm2", LFM2_NAMES, more=lfm2_keys, convolutions=frozenset({"shortconv.conv"})
    ),
    "llama": Architecture("LlamaForCausalLM", "llama", LLAMA_NAMES, LLAMA_PERMUTED),
    "olmo2": Architecture("Olmo2ForCausalLM", "olmo2", OLMO2_NAMES | HEAD_NORMS | NORMS_AFTER),
    "phi3": Architecture("Phi3ForCausalLM", "phi3", PHI3_NAMES, more=phi3_keys),
    "qwen2": Architecture("Qwen2ForCausalLM", "qwen2", LLAMA_NAMES),
    "qwen3": Architecture("Qwen3ForCausalLM", "qwen3", LLAMA_NAMES | HEAD_NORMS),
    "qwen3moe": Architecture(
        "Qwen3MoeForCausalLM",
        "qwen3_moe",
        LLAMA_NAMES | HEAD_NORMS | {"ffn_gate_inp": "model.layers.{i}.mlp.gate"},
        more=qwen3_moe_keys,
        experts=QWEN3_MOE_EXPERTS,
    ),
    "stablelm": Architecture("StableLmForCausalLM", "stablelm", LLAMA_NAMES, more=stablelm_keys, norm_key=LAYER_NORM),
    "starcoder2": Architecture(
        "Starcoder2ForCausalLM", "starcoder2", STARCODER2_NAMES, more=starcoder2_keys, norm_key=LAYER_NORM
    ),
}
MIXTRAL = Architecture(
    "MixtralForCausalLM",
    "mixtral",
    LLAMA_NAMES | {"ffn_gate_inp": "model.layers.{i}.block_sparse_moe.gate"},
    LLAMA_PERMUTED,
    more=mixtral_keys,
    experts=MIXTRAL_EXPERTS,
)


def architecture_of(file: Gguf) -> Architecture | None:
    """None: not one of these. Mixtral calls itself a Llama that has experts."""
    name = file.metadata.get("general.architecture")
    if name == "llama" and file.metadata.get("llama.expert_count"):
        return MIXTRAL
    return ARCHITECTURES.get(name) if isinstance(name, str) else None
