"""A tiny Llama checkpoint folder, made in milliseconds with numpy alone: real files, as loaders meet them.

    folder = make_tiny_llama(tmp_path / "tiny", seed=0)                      # bfloat16, 2 layers, 284 ids
    folder = make_tiny_llama(tmp_path / "tiny", seed=0, num_hidden_layers=1, torch_dtype="float32", shards=3)

The tokenizer is byte-level BPE with a dozen merges, so every text encodes, every token decodes, and a token may be
part of a character.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>")
# fmt: off
MERGES = (
    "t h", "Ġ th", "Ġth e", "h e", "i n", "Ġ a", "a n", "Ġa n", "Ġan d", "e r", "o n", "in g", "Ġ w", "à ¤", "Ã ©",
    "Ġ Ġ", "l l", "he ll", "hell o", "Ġ s", "r e", "e n", "Ċ Ċ", "ð Ł",
)
# fmt: on
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TINY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}


def make_tiny_llama(folder: str | Path, seed: int, *, shards: int = 1, **overrides: Any) -> Path:
    """Write config.json, safetensors, tokenizer and chat template into `folder`; the same seed gives the same bytes.

    `overrides` replace keys of config.json. `vocab_size` defaults to the tokenizer's; a larger one leaves spare ids.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = toy_vocabulary()
    first = len(vocabulary)
    special = {token: first + i for i, token in enumerate(SPECIAL_TOKENS)}
    config = TINY | {
        "vocab_size": first + len(special),
        "bos_token_id": special["<|endoftext|>"],
        "eos_token_id": special["<|im_end|>"],
        "pad_token_id": special["<|pad|>"],
    }
    config |= overrides
    _write_json(folder / "config.json", config)
    _write_json(folder / "tokenizer.json", toy_tokenizer(vocabulary, special))
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(config))
    _write_json(folder / "generation_config.json", {k: config[k] for k in ("bos_token_id", "eos_token_id")})
    _write_weights(folder, tiny_weights(config, seed), config["torch_dtype"], shards)
    return folder


def write_tokenizer(folder: Path, config: dict[str, Any]) -> None:
    """The toy tokenizer beside a config of at least 284 ids."""
    vocabulary = toy_vocabulary()
    special = {token: len(vocabulary) + i for i, token in enumerate(SPECIAL_TOKENS)}
    _write_json(folder / "tokenizer.json", toy_tokenizer(vocabulary, special))
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(config))


def tiny_weights(config: dict[str, Any], seed: int) -> dict[str, np.ndarray]:
    """float32 weights of a Llama config by Hugging Face name, large enough that logits and attention are not flat."""
    random = np.random.default_rng(seed)
    E, F, D = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    H, K = config["num_attention_heads"], config["num_key_value_heads"]

    def matrix(rows: int, columns: int, gain: float = 1.0) -> np.ndarray:
        return (random.standard_normal((rows, columns)) * gain / np.sqrt(columns)).astype(np.float32)

    def norm(length: int) -> np.ndarray:
        return (1 + 0.2 * random.standard_normal(length)).astype(np.float32)

    weights = {"model.embed_tokens.weight": matrix(config["vocab_size"], E, gain=4)}
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        weights |= {
            layer + "input_layernorm.weight": norm(E),
            layer + "self_attn.q_proj.weight": matrix(H * D, E, gain=2),
            layer + "self_attn.k_proj.weight": matrix(K * D, E, gain=2),
            layer + "self_attn.v_proj.weight": matrix(K * D, E),
            layer + "self_attn.o_proj.weight": matrix(E, H * D),
            layer + "post_attention_layernorm.weight": norm(E),
            layer + "mlp.gate_proj.weight": matrix(F, E),
            layer + "mlp.up_proj.weight": matrix(F, E),
            layer + "mlp.down_proj.weight": matrix(E, F),
        }
        if config.get("model_type") == "qwen3":
            weights |= {f"{layer}self_attn.{name}_norm.weight": norm(D) for name in "qk"}
        if config["attention_bias"]:
            for name, rows in (("q", H * D), ("k", K * D), ("v", K * D), ("o", E)):
                weights[f"{layer}self_attn.{name}_proj.bias"] = matrix(1, rows)[0]
        if config["mlp_bias"]:
            for name, rows in (("gate", F), ("up", F), ("down", E)):
                weights[f"{layer}mlp.{name}_proj.bias"] = matrix(1, rows)[0]
    weights["model.norm.weight"] = norm(E)
    if not config["tie_word_embeddings"]:
        weights["lm_head.weight"] = matrix(config["vocab_size"], E, gain=4)
    return weights


def byte_letters() -> list[str]:
    """GPT-2's printable stand-in for each byte value."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    return [letters[byte] for byte in range(256)]


def toy_vocabulary() -> dict[str, int]:
    """256 bytes, then one token per merge."""
    tokens = byte_letters() + [merge.replace(" ", "") for merge in MERGES]
    return {token: i for i, token in enumerate(tokens)}


def toy_tokenizer(vocabulary: dict[str, int], special: dict[str, int]) -> dict[str, Any]:
    """A tokenizer.json: byte-level BPE, no text added by itself (no BOS)."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": token, **flags} for token, i in special.items()],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": vocabulary,
            "merges": list(MERGES),
        },
    }


def add_bos(folder: Path) -> None:
    """Make the folder's tokenizer put <|endoftext|> before a text."""
    path, bos = folder / "tokenizer.json", SPECIAL_TOKENS[0]
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    ids = [token["id"] for token in tokenizer["added_tokens"] if token["content"] == bos]
    first = {"SpecialToken": {"id": bos, "type_id": 0}}
    text, second = {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [first, text],
        "pair": [first, text, second],
        "special_tokens": {bos: {"id": bos, "ids": ids, "tokens": [bos]}},
    }
    _write_json(path, tokenizer)


def write_safetensors(
    path: Path, tensors: dict[str, np.ndarray], dtype: str = "float32", vectors: str | None = None
) -> None:
    """One safetensors file of float32 arrays stored as `dtype`, or as `vectors`: header and raw bytes, by hand."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    blobs, offset = [], 0
    for name, array in tensors.items():
        stored, blob = encode(array, vectors if vectors and array.ndim == 1 else dtype)
        header[name] = {"dtype": stored, "shape": list(array.shape), "data_offsets": [offset, offset + len(blob)]}
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(blobs))


def encode(array: np.ndarray, dtype: str) -> tuple[str, bytes]:
    """(safetensors type, little-endian bytes) of a float32 array; bfloat16 rounds to nearest even."""
    if dtype == "float32":
        return "F32", array.astype("<f4").tobytes()
    if dtype == "float16":
        return "F16", array.astype("<f2").tobytes()
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    return "BF16", ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()


def _write_weights(folder: Path, weights: dict[str, np.ndarray], dtype: str, shards: int) -> None:
    if shards == 1:
        write_safetensors(folder / "model.safetensors", weights, dtype)
        return
    names, files = list(weights), {}
    for i in range(shards):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        files |= dict.fromkeys(names[i::shards], file)
        write_safetensors(folder / file, {name: weights[name] for name in names[i::shards]}, dtype)
    size = sum(array.size * (4 if dtype == "float32" else 2) for array in weights.values())
    _write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": size}, "weight_map": files})


def _tokenizer_config(config: dict[str, Any]) -> dict[str, Any]:
    return {
        "bos_token": "<|endoftext|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|pad|>",
        "add_bos_token": False,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "model_max_length": config["max_position_embeddings"],
        "tokenizer_class": "PreTrainedTokenizerFast",
    }


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1), encoding="utf-8")
