"""GGUF files of the architectures of tests/models/families.py, as llama.cpp's converter would write them.

Names come from the `gguf` package's own table. What the converter does to values is done here once more: it permutes q
and k of Llama and Granite, turns GPT-2's matrices round, and adds 1 to Gemma's norms.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tests.checkpoints.gguf_files import permute
from zerokl.checkpoints.quantised import LAYOUTS, dequantise

ARCHITECTURES = {
    "Gemma2ForCausalLM": gguf.MODEL_ARCH.GEMMA2,
    "Gemma3ForCausalLM": gguf.MODEL_ARCH.GEMMA3,
    "GPT2LMHeadModel": gguf.MODEL_ARCH.GPT2,
    "GraniteForCausalLM": gguf.MODEL_ARCH.GRANITE,
    "LlamaForCausalLM": gguf.MODEL_ARCH.LLAMA,
    "Olmo2ForCausalLM": gguf.MODEL_ARCH.OLMO2,
    "Phi3ForCausalLM": gguf.MODEL_ARCH.PHI3,
    "Qwen2ForCausalLM": gguf.MODEL_ARCH.QWEN2,
    "Qwen3ForCausalLM": gguf.MODEL_ARCH.QWEN3,
    "StableLmForCausalLM": gguf.MODEL_ARCH.STABLELM,
    "Starcoder2ForCausalLM": gguf.MODEL_ARCH.STARCODER2,
}
BLOCKS = [
    *("Q4_K", "Q6_K", "Q5_K", "IQ4_XS", "Q2_K", "Q3_K", "Q8_0", "Q5_0"),
    *("IQ4_NL", "Q4_0", "Q4_1", "Q5_1", "F16", "BF16"),
]
"""Every type, dealt to a file's matrices in turn."""
NO_ROPE = ("gpt2",)


def write_family_gguf(
    path: Path, config: dict[str, Any], tensors: dict[str, np.ndarray], kinds: list[str], parts: int = 1
) -> list[Path]:
    """The model, its matrices stored as `kinds` in turn, in `parts` files."""
    architecture = ARCHITECTURES[config["architectures"][0]]
    name = gguf.MODEL_ARCH_NAMES[architecture]
    table = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
    stored = [
        (table.get_name(hf_name, try_suffixes=(".weight", ".bias")), as_converted(name, config, hf_name, array))
        for hf_name, array in tensors.items()
    ] + rope_factors(config)
    paths = (
        [path.with_name(f"{path.stem}-{i + 1:05}-of-{parts:05}.gguf") for i in range(parts)] if parts > 1 else [path]
    )
    matrices = 0
    writers = [gguf.GGUFWriter(part, name) for part in paths]
    for number, writer in enumerate(writers if parts > 1 else []):
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", parts)
        writer.add_int32("split.tensors.count", len(stored))
    add_keys(writers[0], name, config)
    for i, (gguf_name, array) in enumerate(stored):
        kind = kinds[matrices % len(kinds)] if array.ndim == 2 else "F32"
        matrices += array.ndim == 2
        add_blocks(writers[i * parts // len(stored)], gguf_name, array, kind)
    for writer in writers:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return paths


def as_converted(name: str, config: dict[str, Any], hf_name: str, array: np.ndarray) -> np.ndarray:
    if name in ("llama", "granite") and ("q_proj" in hf_name or "k_proj" in hf_name):
        return permute(array, config["num_attention_heads" if "q_proj" in hf_name else "num_key_value_heads"])
    if name == "gpt2" and array.ndim == 2 and (".c_" in hf_name):
        return np.ascontiguousarray(array.T)
    if name.startswith("gemma") and "norm" in hf_name:
        return array + np.float32(1)
    return array


def rope_factors(config: dict[str, Any]) -> list[tuple[str, np.ndarray]]:
    scaling = config.get("rope_scaling") or {}
    names = [key for key in ("long_factor", "short_factor") if key in scaling]
    return [(f"rope_factors_{key.removesuffix('_factor')}.weight", np.array(scaling[key], np.float32)) for key in names]


def add_keys(writer: gguf.GGUFWriter, name: str, config: dict[str, Any]) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    if name in ("gpt2", "stablelm", "starcoder2"):
        writer.add_layer_norm_eps(
            config.get("layer_norm_epsilon") or config.get("norm_epsilon") or config.get("layer_norm_eps") or 1e-5
        )
    else:
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    if name == "gpt2":
        return
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(int(config["head_dim"] * config.get("partial_rotary_factor", 1.0)))
    writer.add_rope_freq_base(config.get("rope_theta", 10000.0))
    add_scaling(writer, config)
    own = {
        "gemma2": [
            ("attn_logit_softcapping", "attn_logit_softcapping"),
            ("sliding_window", "attention.sliding_window"),
        ],
        "gemma3": [
            ("sliding_window", "attention.sliding_window"),
            ("sliding_window_pattern", "attention.sliding_window_pattern"),
            ("rope_local_base_freq", "rope.freq_base_swa"),
        ],
        "granite": [
            ("attention_multiplier", "attention.scale"),
            ("embedding_multiplier", "embedding_scale"),
            ("residual_multiplier", "residual_scale"),
            ("logits_scaling", "logit_scale"),
        ],
    }
    for key, gguf_key in [*own.get(name, []), ("final_logit_softcapping", "final_logit_softcapping")]:
        if config.get(key) is not None:
            value = config[key]
            add = writer.add_uint32 if isinstance(value, int) else writer.add_float32
            add(f"{name}.{gguf_key}", value)
    if name == "phi3":
        writer.add_sliding_window(config.get("sliding_window") or 0)
        writer.add_rope_scaling_orig_ctx_len(config.get("original_max_position_embeddings", 4096))
    if name == "starcoder2" and config.get("sliding_window"):
        writer.add_sliding_window(config["sliding_window"])


def add_scaling(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    scaling = config.get("rope_scaling") or {}
    match scaling.get("rope_type", scaling.get("type")):
        case "yarn":
            writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
            writer.add_rope_scaling_factor(scaling["factor"])
            writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
            if "beta_fast" in scaling:
                writer.add_rope_scaling_yarn_beta_fast(scaling["beta_fast"])
        case "longrope":
            writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)
            trained = config["original_max_position_embeddings"]
            factor = scaling.get("factor", config["max_position_embeddings"] / trained)
            writer.add_rope_scaling_attn_factors(float(np.sqrt(1 + np.log(factor) / np.log(trained))))


def add_blocks(writer: gguf.GGUFWriter, name: str, array: np.ndarray, kind: str) -> None:
    """Rounded by the package where it can, else blocks of random bits about as large as the array's numbers."""
    quant = gguf.GGMLQuantizationType[kind]
    if (kind in LAYOUTS and LAYOUTS[kind].values == 256) or kind == "IQ4_NL":
        stored = random_blocks(kind, array.shape, float(array.std()), name)
    else:
        stored = gguf.quants.quantize(array, quant)
    writer.add_tensor(name, stored, raw_dtype=quant)


OFFSETS = {"Q2_K": 1.5, "Q4_K": 7.5, "Q5_K": 15.5}
"""`least` in units of d, so that the mean is about 0."""


def random_blocks(kind: str, shape: tuple[int, ...], spread: float, name: str) -> np.ndarray:
    """Random bits whose values have about this standard deviation; they depend on the name alone."""
    layout = LAYOUTS[kind]
    random = np.random.default_rng(int.from_bytes(sha256(name.encode()).digest()[:8], "little"))
    count = int(np.prod(shape)) // layout.values
    blocks = random.integers(0, 256, count * layout.block.itemsize, dtype=np.uint8).view(layout.block)
    blocks["d"] = 1
    if kind in OFFSETS:
        blocks["least"] = OFFSETS[kind]
    unit = spread / dequantise(layout, blocks.view(np.uint8)).std()
    blocks["d"] = unit
    if kind in OFFSETS:
        blocks["least"] = unit * OFFSETS[kind]
    return blocks.view(np.uint8).reshape(*shape[:-1], -1)
