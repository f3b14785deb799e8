"""What a GGUF file's keys and tensor names mean: the same model in Hugging Face's words.

An architecture is one entry of `ARCHITECTURES`. llama.cpp rotates neighbouring pairs (0, 1), (2, 3), ... where Hugging
Face rotates halves (0, R/2), (1, R/2 + 1), ..., so its converter permutes the rows of q and k inside each head; that is
undone here, and every model sees the half-split order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from zerokl.checkpoints.digest import files_digest
from zerokl.checkpoints.files import fail
from zerokl.checkpoints.gguf import Gguf, read_gguf
from zerokl.checkpoints.gguf_rope import rope_scaling
from zerokl.checkpoints.gguf_tokenizer import read_tokenizer
from zerokl.checkpoints.view import Array, Checkpoint, Tensor
from zerokl.errors import UnsupportedModel


@dataclass(frozen=True)
class Architecture:
    """How one GGUF architecture is spelt by Hugging Face."""

    hf_name: str
    model_type: str
    names: Mapping[str, str]
    """GGUF name without "blk.N." -> Hugging Face name, "{i}" for N; both without ".weight" or ".bias"."""
    permuted: Mapping[str, str] = field(default_factory=dict)
    """GGUF names whose rows are permuted for llama.cpp's rotation -> the config key of their number of heads."""
    more: Callable[[Keys, dict[str, Any]], dict[str, Any]] = lambda keys, config: {}
    """Keys of config.json that only this architecture has."""


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
GEMMA3_NAMES = (
    LLAMA_NAMES
    | HEAD_NORMS
    | {
        "post_attention_norm": "model.layers.{i}.post_attention_layernorm",
        "ffn_norm": "model.layers.{i}.pre_feedforward_layernorm",
        "post_ffw_norm": "model.layers.{i}.post_feedforward_layernorm",
    }
)
GEMMA3_27B_LAYERS = 62
"""The one size whose scores are scaled by hidden size over heads, which GGUF doesn't say."""


def gemma3_keys(keys: Keys, config: dict[str, Any]) -> dict[str, Any]:
    """Gemma 3's own; llama.cpp's converter has added the 1 to the norms' weights."""
    is_27b = config["num_hidden_layers"] == GEMMA3_27B_LAYERS
    scalar = config["hidden_size"] // config["num_attention_heads"] if is_27b else config["head_dim"]
    capped = f"{keys.prefix}.final_logit_softcapping" in keys.file.metadata
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": scalar,
        "sliding_window": keys.count("attention.sliding_window"),
        "sliding_window_pattern": keys.count("attention.sliding_window_pattern", 6),
        "rope_local_base_freq": keys.real("rope.freq_base_swa", 10000.0),
        "final_logit_softcapping": keys.real("final_logit_softcapping") if capped else None,
        "norms_are_whole": True,
    }


ARCHITECTURES = {
    "gemma3": Architecture("Gemma3ForCausalLM", "gemma3_text", GEMMA3_NAMES, more=gemma3_keys),
    "qwen3": Architecture("Qwen3ForCausalLM", "qwen3", LLAMA_NAMES | HEAD_NORMS),
    "llama": Architecture(
        "LlamaForCausalLM",
        "llama",
        LLAMA_NAMES,
        permuted={"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"},
    ),
}
NOT_WEIGHTS = {"rope_freqs.weight"}
"""Read by `rope_scaling`: part of the config in Hugging Face's words."""
GGUF_NAME = re.compile(r"(?:blk\.(0|[1-9][0-9]{0,5})\.)?([a-z_]+)\.(weight|bias)")
GENERATION = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}


def open_gguf(path: Path) -> Checkpoint:
    file = read_gguf(path)
    if file.metadata.get("split.count", 1) != 1:
        raise UnsupportedModel(f"{path}: one part of a split GGUF file; join the parts (llama-gguf-split --merge)")
    name = file.metadata.get("general.architecture")
    architecture = ARCHITECTURES.get(name) if isinstance(name, str) else None
    if architecture is None:
        raise UnsupportedModel(f"{path}: GGUF architecture {name!r:.80}; zerokl reads {', '.join(ARCHITECTURES)}")
    tokenizer = read_tokenizer(file)
    config = read_config(file, architecture)
    if tokenizer:
        special = replace(tokenizer.special, vocab_size=config["vocab_size"])
        tokenizer = replace(tokenizer, special=special)
        config |= {
            "bos_token_id": special.bos_id,
            "pad_token_id": special.pad_id,
            "eos_token_id": _one_or_all(special.eos_ids),
        }
    return Checkpoint(
        path=path,
        config=config,
        tensors=_hf_tensors(file, architecture, config),
        tokenizer=tokenizer,
        generation_config=_generation_config(file.metadata, config),
        compute_digest=lambda: files_digest([path]),
    )


def read_config(file: Gguf, architecture: Architecture) -> dict[str, Any]:
    """config.json's keys of a Llama-like model."""
    keys = Keys(file)
    heads, width = keys.count("attention.head_count"), keys.count("embedding_length")
    head_dim = keys.count("attention.key_length", width // heads)
    if keys.count("attention.value_length", head_dim) != head_dim:
        raise UnsupportedModel(f"{file.path}: values of another length than keys")
    if keys.count("expert_count", 0, minimum=0):
        raise UnsupportedModel(f"{file.path}: a mixture of experts, which zerokl doesn't read from GGUF yet")
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        fail(file.path, "no tensor 'token_embd.weight' with two axes")
    rotated = keys.count("rope.dimension_count", head_dim)
    base = keys.real("rope.freq_base", 10000.0)
    config: dict[str, Any] = {
        "architectures": [architecture.hf_name],
        "model_type": architecture.model_type,
        "hidden_size": width,
        "intermediate_size": keys.count("feed_forward_length"),
        "num_hidden_layers": keys.count("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": keys.count("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": keys.count("context_length"),
        "rms_norm_eps": keys.real("attention.layer_norm_rms_epsilon"),
        "rope_theta": base,
        "rope_scaling": rope_scaling(file, keys.prefix, base, rotated),
        **({"partial_rotary_factor": rotated / head_dim} if rotated != head_dim else {}),
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in file.tensors,
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "vocab_size": embedding.shape[0],
        "torch_dtype": {"F16": "float16", "BF16": "bfloat16"}.get(embedding.dtype, "float32"),
    }
    return config | architecture.more(keys, config)


class Keys:
    """The architecture's own keys ("llama.block_count"), with their types checked."""

    def __init__(self, file: Gguf) -> None:
        self.file = file
        self.prefix = str(file.metadata["general.architecture"])

    def count(self, key: str, default: int | None = None, minimum: int = 1) -> int:
        value = self._get(key, default)
        if isinstance(value, np.ndarray) and value.size and value.dtype.kind in "iu" and (value == value[0]).all():
            value = int(value[0])  # llama.cpp writes one number per layer where layers may differ
        if type(value) is not int or not minimum <= value < 1 << 31:
            fail(self.file.path, f"{self.prefix}.{key} is {value!r:.60}, not an integer from {minimum}")
        return value

    def real(self, key: str, default: float | None = None) -> float:
        """The shortest decimal of the stored float32: 1e-05, not 9.999999747378752e-06."""
        value = self._get(key, default)
        if not isinstance(value, float) or not np.isfinite(value) or value <= 0:
            fail(self.file.path, f"{self.prefix}.{key} is {value!r:.60}, not a positive number")
        return float(str(np.float32(value)))

    def _get(self, key: str, default: Any) -> Any:
        value = self.file.metadata.get(f"{self.prefix}.{key}", default)
        if value is None:
            fail(self.file.path, f"no metadata key {self.prefix}.{key}")
        return value


def _hf_tensors(file: Gguf, architecture: Architecture, config: dict[str, Any]) -> dict[str, Tensor]:
    tensors, unknown = {}, []
    for name, tensor in file.tensors.items():
        if name in NOT_WEIGHTS:
            continue
        match = GGUF_NAME.fullmatch(name)
        hf_name = architecture.names.get(match[2]) if match else None
        if not match or hf_name is None or (match[1] is None) == ("{i}" in hf_name):
            unknown.append(name)
            continue
        renamed = hf_name.replace("{i}", match[1] or "") + "." + match[3]
        heads = config[architecture.permuted[match[2]]] if match[2] in architecture.permuted else 0
        tensors[renamed] = _unpermuted(file.path, renamed, tensor, heads) if heads else replace(tensor, name=renamed)
    if unknown:
        raise UnsupportedModel(
            f"{file.path}: {len(unknown)} tensors unknown to {architecture.model_type}: {', '.join(unknown[:5])}"
        )
    return tensors


def _unpermuted(path: Path, name: str, tensor: Tensor, heads: int) -> Tensor:
    rows = tensor.shape[0]
    if rows % (2 * heads):
        fail(path, f"tensor {tensor.name!r}: {rows} rows don't make {heads} heads of pairs")

    def read() -> Array:
        array = tensor.array()
        pairs = array.reshape(heads, rows // heads // 2, 2, *array.shape[1:])
        return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(array.shape)

    return replace(tensor, name=name, read=read)


def _generation_config(metadata: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    chosen = {hf: metadata.get(f"general.sampling.{key}") for key, hf in GENERATION.items()}
    ids = {key: config.get(key) for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    return {key: value for key, value in (ids | chosen).items() if isinstance(value, int | float | list)}


def _one_or_all(ids: tuple[int, ...]) -> int | list[int] | None:
    return ids[0] if len(ids) == 1 else list(ids) or None
