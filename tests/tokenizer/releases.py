"""tokenizer.json as models' releases have it, one per way of cutting words, around the toy vocabulary of the goldens.

Written from the releases' own files (their patterns are quoted in llama.cpp's source as well), and not from the table
that zerokl reads GGUF files by: the two are compared.
"""

# ruff: noqa: E501 - a pattern is a pattern, however long
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.checkpoints.tiny import byte_letters

CL100K = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
O200K = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SEED_CODER = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def split(*patterns: str) -> list[dict[str, Any]]:
    return [{"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False} for p in patterns]


DIGITS: list[dict[str, Any]] = [{"type": "Digits", "individual_digits": True}]
GPT2_WORDS: dict[str, Any] = {"use_regex": True}
PUNCTUATION_THEN_LETTERS = (
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*"
    "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
)
DEEPSEEK_LLM = (
    "[\r\n]",
    "\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+",
    "\\s?[!-/:-~！-／：-～‘-‟\u3000-。]+",
    "\\s+$",
    "[一-龥ࠀ-一가-퟿]+",
)
RELEASES: dict[str, dict[str, Any]] = {
    "gpt-2": {"byte_level": GPT2_WORDS},
    "smollm": {"steps": DIGITS, "byte_level": GPT2_WORDS},
    "llama-bpe": {"steps": split(CL100K), "ignore_merges": True},
    "dbrx": {"steps": split(CL100K)},
    "qwen2": {"steps": split(QWEN2), "normalizer": {"type": "NFC"}},
    "deepseek-r1-qwen": {"steps": split(QWEN2)},
    "tekken": {"steps": split(TEKKEN), "ignore_merges": True},
    "gpt-4o": {"steps": split(O200K)},
    "deepseek-coder": {"steps": [*split("[\r\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", "[一-龥ࠀ-一가-퟿]+"), *DIGITS]},
    "deepseek-v3": {"steps": split("\\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+", PUNCTUATION_THEN_LETTERS)},
    "seed-coder": {"steps": split(SEED_CODER)},
    "viking": {"steps": [*split(" ?[^(\\s|.,!?…。，、।۔،)]+"), *DIGITS]},
    "falcon": {
        "steps": [{"type": "Punctuation", "behavior": "Contiguous"}],
        "byte_level": GPT2_WORDS,
        "after": [{"type": "Digits", "individual_digits": False}, *split("[0-9][0-9][0-9]")],
    },
    "deepseek-llm": {"steps": [*split(*DEEPSEEK_LLM), *DIGITS]},
}


def release_json(kind: str, merges: list[str], special: list[str]) -> dict[str, Any]:
    """The file, with a vocabulary of 256 bytes, what each merge gives, and the special tokens."""
    release = RELEASES[kind]
    tokens = list(dict.fromkeys([*byte_letters(), *(merge.replace(" ", "") for merge in merges)]))
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    steps = [*release.get("steps", []), byte_level | release.get("byte_level", {}), *release.get("after", [])]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": len(tokens) + i, "content": token, **flags} for i, token in enumerate(special)],
        "normalizer": release.get("normalizer"),
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "post_processor": None,
        "decoder": byte_level | {"use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": release.get("ignore_merges", False),
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in merges],
        },
    }


def write_release(folder: Path, kind: str, merges: list[str], special: list[str]) -> Path:
    """A folder that transformers and zerokl open."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(release_json(kind, merges, special)))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": special[-1]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder
