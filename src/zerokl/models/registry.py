"""Which module runs which architecture: one line per name that a checkpoint's config may give."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from typing import Any

from zerokl.errors import CheckpointError, UnsupportedModel
from zerokl.models.model import Architecture

ARCHITECTURES = {
    "GPT2LMHeadModel": "gpt2",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3",
    "GraniteForCausalLM": "granite",
    "GraniteMoeHybridForCausalLM": "granite_hybrid",
    "InklingForCausalLM": "inkling",
    "InklingForConditionalGeneration": "inkling",
    "Lfm2ForCausalLM": "lfm2",
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "MixtralForCausalLM": "mixtral",
    "Olmo2ForCausalLM": "olmo2",
    "Phi3ForCausalLM": "phi3",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "Qwen3NextForCausalLM": "qwen3_next",
    "StableLmForCausalLM": "stablelm",
    "Starcoder2ForCausalLM": "starcoder2",
}
"""Only the module that a checkpoint names is loaded: all of them take 15 ms of every start."""


def architecture_of(config: Mapping[str, Any]) -> tuple[str, Architecture]:
    """The first architecture that the config names and its module.

    Raises UnsupportedModel, which names what is supported and what is nearest, and CheckpointError if none is named.
    """
    names = config.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise CheckpointError(f"the config's architectures must be a list that names one, not {names!r}")
    name = names[0]
    if name not in ARCHITECTURES:
        nearest = difflib.get_close_matches(name, ARCHITECTURES, n=1, cutoff=0)[0]
        supported = ", ".join(sorted(ARCHITECTURES))
        raise UnsupportedModel(f"architecture {name!r} isn't supported; supported: {supported}; nearest: {nearest}")
    module: Any = importlib.import_module(f"zerokl.models.{ARCHITECTURES[name]}")
    return name, module
