"""A byte-level tokenizer small enough to know by heart: token id = byte, then <s> 256, </s> 257, <|im_end|> 258."""

from __future__ import annotations

import json
from pathlib import Path

from zerokl.tokenizer.run_folder import write_run_folder
from zerokl.types import SpecialTokens, TokenizerFiles

BOS, EOS, END = 256, 257, 258
VOCAB = 259
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def letters() -> list[str]:
    """The character that stands for each byte in byte-level vocabularies."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte if byte in printable else 256 + others.index(byte)) for byte in range(256)]


def toy_files(add_bos: bool = False) -> TokenizerFiles:
    special = {"<s>": BOS, "</s>": EOS, "<|im_end|>": END}
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": i, "content": text, "single_word": False, "lstrip": False, "rstrip": False}
            | {"normalized": False, "special": True}
            for text, i in special.items()
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "post_processor": _bos() if add_bos else None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {letter: byte for byte, letter in enumerate(letters())},
            "merges": [],
        },
    }
    names = (("bos_token", "<s>"), ("eos_token", "</s>"))
    tokens = SpecialTokens(VOCAB, BOS, (EOS, END), eot_id=END, add_bos=add_bos, names=names)
    return TokenizerFiles(json.dumps(content), tokens, TEMPLATE)


def write_toy_folder(folder: Path, add_bos: bool = False) -> Path:
    write_run_folder(folder, toy_files(add_bos))
    return folder


def _bos() -> dict[str, object]:
    start = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [start, text],
        "pair": [start, text, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [BOS], "tokens": ["<s>"]}},
    }
