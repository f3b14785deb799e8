"""What a GGUF file's keys and tensor names mean: the same model in Hugging Face's words.

What architectures differ in stands in `gguf_architectures.py`. llama.cpp rotates neighbouring pairs (0, 1), (2, 3), ...
where Hugging Face rotates halves (0, R/2), (1, R/2 + 1), ..., so its converter permutes the rows of q and k inside each
head; that is undone here, and every model sees the half-split order.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from zerokl.checkpoints.digest import files_digest
from zerokl.checkpoints.files import fail
from zerokl.checkpoints.gguf import Gguf, unstacked
from zerokl.checkpoints.gguf_architectures import ARCHITECTURES, Architecture, Keys, architecture_of
from zerokl.checkpoints.gguf_rope import rope_scaling
from zerokl.checkpoints.gguf_split import read_parts
from zerokl.checkpoints.gguf_tokenizer import read_tokenizer
from zerokl.checkpoints.view import Array, Checkpoint, Tensor
from zerokl.errors import UnsupportedModel
from zerokl.quant import Blocks
from zerokl.types import TokenizerFiles

NOT_WEIGHTS = {"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"}
"""Read by `rope_scaling`: part of the config in Hugging Face's words."""
GGUF_NAME = re.compile(r"(?:blk\.(0|[1-9][0-9]{0,5})\.)?((?:shortconv\.)?[a-z_]+)\.(weight|bias)")
GENERATION = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}


def open_gguf(path: Path) -> Checkpoint:
    file, paths = read_parts(path)
    name = file.metadata.get("general.architecture")
    architecture = architecture_of(file)
    if architecture is None:
        nearest = get_close_matches(str(name), ARCHITECTURES, n=1, cutoff=0)[0]
        raise UnsupportedModel(
            f"{path}: GGUF architecture {name!r:.80} isn't supported; supported: {', '.join(ARCHITECTURES)}; "
            f"nearest: {nearest}"
        )
    config = read_config(file, architecture)

    @cache
    def tokenizer() -> TokenizerFiles | None:
        files = read_tokenizer(file)
        return files and replace(files, special=replace(files.special, vocab_size=config["vocab_size"]))

    return Checkpoint(
        path=path,
        config=config,
        tensors=_hf_tensors(file, architecture, config),
        read_tokenizer=tokenizer,
        read_generation_config=lambda: _generation_config(file.metadata, tokenizer()),
        compute_digest=lambda: files_digest(paths),
    )


def read_config(file: Gguf, architecture: Architecture) -> dict[str, Any]:
    """config.json's keys of a Llama-like model."""
    keys = Keys(file)
    heads, width = keys.count("attention.head_count"), keys.count("embedding_length")
    head_dim = keys.count("attention.key_length", width // heads)
    if keys.count("attention.value_length", head_dim) != head_dim:
        raise UnsupportedModel(f"{file.path}: values of another length than keys")
    if keys.count("expert_count", 0, minimum=0) and not architecture.experts:
        raise UnsupportedModel(f"{file.path}: {architecture.model_type} with experts isn't read from GGUF")
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
        "num_key_value_heads": 0 if architecture.convolutions else keys.count("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": keys.count("context_length"),
        "rms_norm_eps": keys.real(architecture.norm_key),
        "rope_theta": base,
        "rope_scaling": rope_scaling(file, keys, base, rotated),
        **({"partial_rotary_factor": rotated / head_dim} if rotated != head_dim else {}),
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in file.tensors,
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "vocab_size": embedding.shape[0],
        "torch_dtype": {"F16": "float16", "BF16": "bfloat16"}.get(embedding.dtype, "float32"),
    }
    return config | architecture.more(keys, config)


def _hf_tensors(file: Gguf, architecture: Architecture, config: dict[str, Any]) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    unknown = []
    for name, tensor in file.tensors.items():
        if name in NOT_WEIGHTS:
            continue
        match = GGUF_NAME.fullmatch(name)
        if match and match[1] and match[2] in architecture.experts:
            tensors |= _experts(file.path, tensor, architecture.experts[match[2]].replace("{i}", match[1]), config)
            continue
        hf_name = architecture.names.get(match[2]) if match else None
        if not match or hf_name is None or (match[1] is None) == ("{i}" in hf_name):
            unknown.append(name)
            continue
        renamed = hf_name.replace("{i}", match[1] or "") + "." + match[3]
        tensors[renamed] = replace(tensor, name=renamed)
        if match[2] in architecture.permuted:
            heads = config[architecture.permuted[match[2]]]
            tensors[renamed] = _unpermuted(file.path, renamed, tensor, heads)
        elif match[2] in architecture.transposed and match[3] == "weight":
            tensors[renamed] = _transposed(renamed, tensor)
        elif match[2] in architecture.convolutions and match[3] == "weight":
            tensors[renamed] = _with_one_input(renamed, tensor)
    if unknown:
        raise UnsupportedModel(
            f"{file.path}: {len(unknown)} tensors unknown to {architecture.model_type}: {', '.join(unknown[:5])}"
        )
    return tensors


def _experts(path: Path, tensor: Tensor, hf_name: str, config: dict[str, Any]) -> dict[str, Tensor]:
    count = config.get("num_experts") or config.get("num_local_experts")
    if len(tensor.shape) != 3 or tensor.shape[0] != count:
        fail(path, f"tensor {tensor.name!r} of shape {tensor.shape} doesn't stack {count} experts")
    names = [hf_name.replace("{e}", str(expert)) + ".weight" for expert in range(count)]
    return dict(zip(names, unstacked(tensor, names), strict=True))


def _unpermuted(path: Path, name: str, tensor: Tensor, heads: int) -> Tensor:
    rows = tensor.shape[0]
    if rows % (2 * heads):
        fail(path, f"tensor {tensor.name!r}: {rows} rows don't make {heads} heads of pairs")

    def unpermuted(array: Array) -> Array:
        pairs = array.reshape(heads, rows // heads // 2, 2, *array.shape[1:])
        return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(array.shape)

    def packed() -> Blocks:
        blocks: Blocks = packed_rows()
        return replace(blocks, stored=unpermuted(blocks.stored))

    packed_rows: Any = tensor.packed
    read = lambda: unpermuted(tensor.array())  # noqa: E731
    return replace(tensor, name=name, read=read, packed=packed if tensor.packed else None)


def _transposed(name: str, tensor: Tensor) -> Tensor:
    def read() -> Array:
        return np.ascontiguousarray(tensor.array().T)

    return replace(tensor, name=name, shape=tensor.shape[::-1], read=read, packed=None)


def _with_one_input(name: str, tensor: Tensor) -> Tensor:
    def read() -> Array:
        return tensor.array()[:, None]

    return replace(tensor, name=name, shape=(tensor.shape[0], 1, *tensor.shape[1:]), read=read, packed=None)


def _generation_config(metadata: dict[str, Any], tokenizer: TokenizerFiles | None) -> dict[str, Any]:
    found = {hf: metadata.get(f"general.sampling.{key}") for key, hf in GENERATION.items()}
    if tokenizer:
        special = tokenizer.special
        found |= {"bos_token_id": special.bos_id, "pad_token_id": special.pad_id}
        found["eos_token_id"] = _one_or_all(special.eos_ids)
    return {key: value for key, value in found.items() if isinstance(value, int | float | list)}


def _one_or_all(ids: tuple[int, ...]) -> int | list[int] | None:
    return ids[0] if len(ids) == 1 else list(ids) or None
