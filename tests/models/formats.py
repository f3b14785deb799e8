"""Each architecture in each format it is read from: what docs/models.md's table has a row for.

Three sets of numbers per architecture, each with a golden of transformers; formats that hold the same numbers share it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.checkpoints.gguf_families import ARCHITECTURES, BLOCKS, write_family_gguf
from tests.checkpoints.tiny import write_safetensors
from tests.models.families import config_of, tensors_of

OF_ARCHITECTURE = {
    "LlamaForCausalLM": "llama-yarn",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Phi3ForCausalLM": "phi3-long",
    "Olmo2ForCausalLM": "olmo2",
    "GraniteForCausalLM": "granite",
    "StableLmForCausalLM": "stablelm",
    "Starcoder2ForCausalLM": "starcoder2",
    "GPT2LMHeadModel": "gpt2",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3-plain-scale",
}
"""The family that stands for each. GGUF doesn't say how Gemma scales scores: but for two sizes, by the head's."""
FORMATS = {
    "safetensors F32": "",
    "safetensors BF16, 2 shards, F32 norms": "bfloat16",
    "GGUF F32": "",
    "GGUF BF16": "bfloat16",
    "GGUF, 14 types, 2 parts": "blocks",
}
"""Format -> the set of numbers that it holds."""
WIDE = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64, "query_pre_attn_scalar": 64}
WIDER = {"gpt2": {"n_embd": 256, "n_inner": 256}, "phi3-long": {"partial_rotary_factor": 0.1875}}
"""Blocks of 256 need rows of 256."""


def rows() -> list[tuple[str, str]]:
    """(architecture, format): a Mistral in GGUF is a Llama there."""
    return [
        (architecture, form)
        for architecture in OF_ARCHITECTURE
        for form in FORMATS
        if not form.startswith("GGUF") or architecture in ARCHITECTURES
    ]


def golden_name(architecture: str, form: str) -> str:
    numbers = FORMATS[form]
    return f"families/{OF_ARCHITECTURE[architecture]}" + (f".{numbers}" if numbers else "")


def config_and_tensors(architecture: str, numbers: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    family = OF_ARCHITECTURE[architecture]
    config = config_of(family)
    if numbers == "blocks":
        config |= WIDE | WIDER.get(family, {})
    tensors = tensors_of(config)
    if numbers == "bfloat16":
        tensors = {name: rounded(array) if array.ndim == 2 else array for name, array in tensors.items()}
    return config, tensors


def rounded(array: np.ndarray) -> np.ndarray:
    """To bfloat16's numbers, ties to even."""
    bits = array.view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


def write(folder: Path, architecture: str, form: str) -> Path:
    """The checkpoint, without a tokenizer: what to open."""
    config, tensors = config_and_tensors(architecture, FORMATS[form])
    folder.mkdir(parents=True, exist_ok=True)
    if form.startswith("GGUF"):
        kinds = {"": ["F32"], "bfloat16": ["BF16"], "blocks": BLOCKS}[FORMATS[form]]
        return write_family_gguf(folder / "model.gguf", config, tensors, kinds, parts=2 if "2 parts" in form else 1)[-1]
    (folder / "config.json").write_text(json.dumps(config))
    if "2 shards" not in form:
        write_safetensors(folder / "model.safetensors", tensors)
        return folder
    half, names = len(tensors) // 2, list(tensors)
    weight_map = {}
    for number, part in enumerate((names[:half], names[half:]), 1):
        file = f"model-{number:05}-of-00002.safetensors"
        write_safetensors(folder / file, {name: tensors[name] for name in part}, "bfloat16", vectors="float32")
        weight_map |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder
