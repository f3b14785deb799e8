"""GGUF files as llama.cpp's converter writes them, through the `gguf` package: an outside writer for our reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tests.checkpoints.tiny import byte_letters, toy_vocabulary

NORMAL, CONTROL, USER_DEFINED = 1, 3, 4
GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_llama_gguf(
    path: Path, config: dict[str, Any], weights: dict[str, np.ndarray], kind: str = "F32", **keys: Any
) -> Path:
    """A Llama of `config` and Hugging Face `weights`; matrices are stored as type `kind`. `keys`: more metadata."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_rope_dimension_count(config["head_dim"])
    for key, value in keys.items():
        _add(writer, key.replace("__", "."), value)
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name, array in weights.items():
        projection = next((heads[p] for p in heads if p in name), 0)
        stored = permute(array, projection) if projection else array
        add_tensor(writer, gguf_name(name), stored, kind if array.ndim == 2 else "F32")
    return _close(writer, path)


def permute(array: np.ndarray, heads: int) -> np.ndarray:
    """Half-split rotary rows to llama.cpp's neighbouring pairs, head by head."""
    halves = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(array.shape)


def gguf_name(name: str) -> str:
    stem, suffix = name.rsplit(".", 1)
    if stem.startswith("model.layers."):
        _, _, layer, rest = stem.split(".", 3)
        return f"blk.{layer}.{GGUF_NAMES[rest]}.{suffix}"
    return f"{GGUF_NAMES[stem]}.{suffix}"


def write_bpe_gguf(path: Path, pre: str, merges: list[str], special: list[str], **keys: Any) -> Path:
    """A file with nothing but a byte-level BPE tokenizer: 256 bytes, a token for what a merge gives, control tokens."""
    tokens = list(dict.fromkeys([*byte_letters(), *(merge.replace(" ", "") for merge in merges), *special]))
    types = [NORMAL] * (len(tokens) - len(special)) + [CONTROL] * len(special)
    writer = _tokenizer_writer(path, "gpt2", tokens, types)
    writer.add_tokenizer_pre(pre)
    writer.add_token_merges(merges)
    writer.add_eos_token_id(len(tokens) - 1)
    for key, value in keys.items():
        _add(writer, key.replace("__", "."), value)
    return _close(writer, path)


def write_sentencepiece_gguf(path: Path, tokens: list[str], scores: list[float], types: list[int], **keys: Any) -> Path:
    """A file with nothing but a SentencePiece tokenizer."""
    writer = _tokenizer_writer(path, "llama", tokens, types)
    writer.add_token_scores(scores)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    for key, value in keys.items():
        _add(writer, key.replace("__", "."), value)
    return _close(writer, path)


def add_tensor(writer: gguf.GGUFWriter, name: str, array: np.ndarray, kind: str) -> None:
    stored = gguf.quants.quantize(array, gguf.GGMLQuantizationType[kind])
    writer.add_tensor(name, stored, raw_dtype=gguf.GGMLQuantizationType[kind])


def _tokenizer_writer(path: Path, model: str, tokens: list[str], types: list[int]) -> gguf.GGUFWriter:
    """With the least of a model around it that llama.cpp's vocabulary loader and transformers ask for."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(512)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(32)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model(model)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    add_tensor(writer, "token_embd.weight", np.zeros((len(tokens), 32), np.float32), "F16")
    return writer


def toy_tokenizer_keys() -> dict[str, Any]:
    """Metadata of the toy tokenizer that `make_tiny_llama` writes, for `write_llama_gguf(**keys)`."""
    from tests.checkpoints.tiny import CHAT_TEMPLATE, MERGES, SPECIAL_TOKENS

    tokens = [*toy_vocabulary(), *SPECIAL_TOKENS]
    first = len(tokens) - len(SPECIAL_TOKENS)
    return {
        "tokenizer__ggml__model": "gpt2",
        "tokenizer__ggml__pre": "gpt-2",
        "tokenizer__ggml__tokens": tokens,
        "tokenizer__ggml__token_type": [NORMAL] * first + [CONTROL] * len(SPECIAL_TOKENS),
        "tokenizer__ggml__merges": list(MERGES),
        "tokenizer__ggml__bos_token_id": first,
        "tokenizer__ggml__eos_token_id": first + 2,
        "tokenizer__ggml__padding_token_id": first + 3,
        "tokenizer__chat_template": CHAT_TEMPLATE,
    }


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_array(key, value)


def _close(writer: gguf.GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
