"""Tokenizers for tests, one per way of decoding: byte-level, SentencePiece with byte fallback, and neither."""

from __future__ import annotations

import json
from functools import cache

from tests.checkpoints.tiny import CHAT_TEMPLATE, SPECIAL_TOKENS, toy_tokenizer, toy_vocabulary
from zerokl.tokenizer import Tokenizer
from zerokl.types import SpecialTokens, TokenizerFiles

WORDS = ("▁", "▁Hello", "▁the", "llo", "é", "你好", "▁你", "😀", "th", "e", "s", "�")


@cache
def byte_level() -> Tokenizer:
    return Tokenizer(byte_level_files())


def byte_level_files() -> TokenizerFiles:
    vocabulary = toy_vocabulary()
    special = {token: len(vocabulary) + i for i, token in enumerate(SPECIAL_TOKENS)}
    size = len(vocabulary) + len(special)
    names = (("bos_token", "<|endoftext|>"), ("eos_token", "<|im_end|>"))
    ids = SpecialTokens(size + 2, special["<|endoftext|>"], (special["<|im_end|>"],), names=names)
    return TokenizerFiles(json.dumps(toy_tokenizer(vocabulary, special)), ids, CHAT_TEMPLATE)


@cache
def sentencepiece(strips_first_space: bool = True) -> Tokenizer:
    """Llama 2's shape: "▁" for a space, one put before the text and taken off again, <0xXX> for what has no token."""
    vocabulary = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *WORDS]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    decoders = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if strips_first_space:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return from_parts(
        vocabulary,
        decoder={"type": "Sequence", "decoders": decoders},
        added=[{"id": i, "content": vocabulary[i], **flags} for i in range(3)],
    )


@cache
def metaspace() -> Tokenizer:
    """A decoder that is not a spelling of bytes, as far as `spelling_of` knows: the library must decode."""
    vocabulary = ["<unk>", *WORDS]
    return from_parts(
        vocabulary, {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}, []
    )


def from_parts(vocabulary: list[str], decoder: object, added: list[dict[str, object]]) -> Tokenizer:
    vocab = {token: i for i, token in enumerate(vocabulary)}
    model = {"type": "BPE", "vocab": vocab, "merges": [], "unk_token": "<unk>", "byte_fallback": True, "fuse_unk": True}
    parts = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
             "pre_tokenizer": None, "post_processor": None, "decoder": decoder, "model": model}  # fmt: skip
    return Tokenizer(TokenizerFiles(json.dumps(parts), SpecialTokens(len(vocabulary))))
