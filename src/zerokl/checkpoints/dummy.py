"""Seeded random weights for a config.json, so that a model runs at its full size without its files.

A value is a random sign and mantissa under one exponent per tensor, about 1/sqrt(columns) in size, so that activations
neither vanish nor explode. Its bits are cut straight out of a generator's stream, so they are the same on every
machine, and a tensor's depend on the seed and its name alone. Norm weights are 1.
"""

from __future__ import annotations

import hashlib
import json
from functools import partial
from math import log2, prod
from pathlib import Path
from typing import Any

import numpy as np

from zerokl.checkpoints.folder import read_config, read_generation_config
from zerokl.checkpoints.folder_tokenizer import read_tokenizer
from zerokl.checkpoints.view import Array, Checkpoint, Tensor
from zerokl.errors import CheckpointError, UnsupportedModel

DTYPES = {"bfloat16": ("BF16", 2), "float16": ("F16", 2), "float32": ("F32", 4)}
MAX_BYTES = 1 << 44


def open_dummy(folder: Path, seed: int) -> Checkpoint:
    """The view of `folder` with made-up weights; only config.json need be there."""
    config = read_config(folder)
    generation = read_generation_config(folder)
    dtype, item_bytes = DTYPES.get(str(config.get("torch_dtype") or config.get("dtype")), DTYPES["bfloat16"])
    tensors = {}
    for name, shape in _shapes(folder, config).items():
        read = partial(_weights, f"{seed}:{name}", shape, dtype)
        tensors[name] = Tensor(name, shape, dtype, prod(shape) * item_bytes, read)
    text = json.dumps(config, sort_keys=True)
    return Checkpoint(
        path=folder,
        config=config,
        tensors=tensors,
        tokenizer=read_tokenizer(folder, config, generation),
        generation_config=generation,
        compute_digest=lambda: hashlib.sha256(f"zerokl dummy 1:{seed}:{text}".encode()).hexdigest(),
    )


def _weights(key: str, shape: tuple[int, ...], dtype: str) -> Array:
    if len(shape) == 1 and key.endswith("norm.weight"):
        return _ones(shape, dtype)
    count, exponent = prod(shape), -round(log2(shape[-1]) / 2 + log2(1.5))
    generator = np.random.SFC64(int.from_bytes(hashlib.sha256(key.encode()).digest()[:16], "little"))
    words: Array = generator.random_raw(-(-count // 4)).astype("<u8", copy=False).view("<u2")[:count]
    if dtype == "F16":
        words = (words & np.uint16(0x83FF)) | np.uint16((15 + max(exponent, -14)) << 10)
        return words.view("<f2").reshape(shape)
    words = (words & np.uint16(0x807F)) | np.uint16((127 + exponent) << 7)
    if dtype == "BF16":
        return words.reshape(shape)
    return (words.astype(np.uint32) << np.uint32(16)).view(np.float32).reshape(shape)


def _ones(shape: tuple[int, ...], dtype: str) -> Array:
    if dtype == "BF16":
        return np.full(shape, 0x3F80, np.uint16)
    return np.ones(shape, np.float16 if dtype == "F16" else np.float32)


def _shapes(folder: Path, config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Tensor names and shapes of the config's architecture."""
    if config.get("model_type") not in SHAPES:
        raise UnsupportedModel(
            f"{folder}: no dummy weights for {config.get('model_type')!r}, only for {', '.join(SHAPES)}"
        )
    shapes = SHAPES[config["model_type"]](Counts(folder, config))
    if sum(map(prod, shapes.values())) * 4 > MAX_BYTES:
        raise CheckpointError(f"{folder / 'config.json'}: a model of more than {MAX_BYTES} bytes")
    return shapes


class Counts:
    """The config's whole numbers, checked."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        self.folder, self.config = folder, config

    def __call__(self, key: str, default: int | None = None) -> int:
        value = self.config.get(key)
        value = default if value is None else value
        if type(value) is not int or not 0 < value < 1 << 24:
            raise CheckpointError(f"{self.folder / 'config.json'}: {key} is {value!r:.40}, not a positive integer")
        return value


def _llama(count: Counts) -> dict[str, tuple[int, ...]]:
    E, F, V = count("hidden_size"), count("intermediate_size"), count("vocab_size")
    H = count("num_attention_heads")
    K, D = count("num_key_value_heads", H), count("head_dim", max(E // H, 1))
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (E,),
        "self_attn.q_proj.weight": (H * D, E),
        "self_attn.k_proj.weight": (K * D, E),
        "self_attn.v_proj.weight": (K * D, E),
        "self_attn.o_proj.weight": (E, H * D),
        "post_attention_layernorm.weight": (E,),
        "mlp.gate_proj.weight": (F, E),
        "mlp.up_proj.weight": (F, E),
        "mlp.down_proj.weight": (E, F),
    }
    biased = {"self_attn": count.config.get("attention_bias"), "mlp": count.config.get("mlp_bias")}
    for name, shape in list(layer.items()):
        if biased.get(name.split(".")[0]):
            layer[name.replace(".weight", ".bias")] = shape[:1]
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (V, E), "model.norm.weight": (E,)}
    for i in range(count("num_hidden_layers")):
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in layer.items()}
    if not count.config.get("tie_word_embeddings", False):
        shapes["lm_head.weight"] = (V, E)
    return shapes


def _qwen3(count: Counts) -> dict[str, tuple[int, ...]]:
    """Llama's, with a norm of each head's queries and keys; the family's head size is 128."""
    count = Counts(count.folder, {"head_dim": 128} | count.config)
    norms = {
        f"model.layers.{i}.self_attn.{name}_norm.weight": (count("head_dim"),)
        for i in range(count("num_hidden_layers"))
        for name in "qk"
    }
    return _llama(count) | norms


SHAPES = {"llama": _llama, "qwen3": _qwen3}
