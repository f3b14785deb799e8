"""GGUF's tokenizer, rebuilt as a tokenizer.json for the `tokenizers` library.

    tokenizer.ggml.model   gpt2    byte-level BPE; the split into words is named by tokenizer.ggml.pre
                           llama   SentencePiece BPE with scores and byte fallback

A pre-tokenizer is one entry of `pre_tokenizers.py`.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

import numpy as np
import orjson

from zerokl.checkpoints.files import fail
from zerokl.checkpoints.gguf import Gguf, Strings
from zerokl.checkpoints.pre_tokenizers import ALIASES, PRE_TOKENIZERS, PreTokenizer
from zerokl.checkpoints.sentencepiece import byte_token, merges_from_scores
from zerokl.checkpoints.special import bos_eos_template
from zerokl.errors import UnsupportedModel
from zerokl.types import SpecialTokens, TokenizerFiles

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""tokenizer.ggml.token_type"""


TURN_ENDS = ("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endofturn|>", "<EOT>", "_<EOT>")
"""Control tokens that end a turn, for files that don't say tokenizer.ggml.eot_token_id."""


def read_tokenizer(file: Gguf) -> TokenizerFiles | None:
    """None if the file has no tokenizer."""
    kind = file.metadata.get("tokenizer.ggml.model")
    if kind in (None, "none"):
        return None
    if kind not in ("gpt2", "llama"):
        raise UnsupportedModel(f"{file.path}: tokenizer model {kind!r:.40}; zerokl reads gpt2 and llama")
    vocabulary = Vocabulary(file)
    pre_tokenizer = _pre_tokenizer(file) if kind == "gpt2" else PreTokenizer(add_bos=True)
    special = _special(vocabulary, pre_tokenizer)
    rebuilt = _byte_level(vocabulary, pre_tokenizer) if kind == "gpt2" else _sentencepiece(vocabulary)
    rebuilt["post_processor"] = _post_processor(vocabulary, special)
    template = file.metadata.get("tokenizer.chat_template", "")
    return TokenizerFiles(orjson.dumps(rebuilt).decode(), special, template if isinstance(template, str) else "")


class Vocabulary:
    """The token list with its types, and the tokenizer's own keys, checked."""

    def __init__(self, file: Gguf) -> None:
        self.file = file
        self.tokens = self.strings("tokens")
        tokens = self.tokens
        if not tokens:
            fail(file.path, "tokenizer.ggml.tokens is empty")
        self.ids = dict(zip(tokens, range(len(tokens)), strict=True))
        types = self.key("token_type")
        self.types: list[int] = [NORMAL] * len(tokens) if types is None else self.column("token_type", "iu").tolist()

    def key(self, name: str, default: Any = None) -> Any:
        return self.file.metadata.get(f"tokenizer.ggml.{name}", default)

    def strings(self, name: str) -> list[str]:
        strings = self.key(name)
        if not isinstance(strings, Strings):
            fail(self.file.path, f"tokenizer.ggml.{name} is missing or not a list of strings")
        return strings.list()

    def column(self, name: str, kinds: str) -> np.ndarray[Any, Any]:
        """A numeric array with one entry per token."""
        values = self.key(name)
        if not isinstance(values, np.ndarray) or values.dtype.kind not in kinds or len(values) != len(self.tokens):
            fail(self.file.path, f"tokenizer.ggml.{name} must hold one number for each of {len(self.tokens)} tokens")
        return values

    def flag(self, name: str, default: bool) -> bool:
        value = self.key(name, default)
        if not isinstance(value, bool):
            fail(self.file.path, f"tokenizer.ggml.{name} is {value!r:.40}, not true or false")
        return value

    def token_id(self, name: str) -> int | None:
        value = self.key(f"{name}_token_id")
        if value is None or value in (-1, 0xFFFFFFFF):
            return None
        if type(value) is not int or not 0 <= value < len(self.tokens):
            fail(
                self.file.path, f"tokenizer.ggml.{name}_token_id is {value!r:.40}, not one of {len(self.tokens)} tokens"
            )
        return value

    def added_tokens(self) -> list[dict[str, Any]]:
        """Tokens found in a text as they stand: control ones (special) and user-defined ones."""
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        special = {CONTROL: True, UNKNOWN: True, USER_DEFINED: False}
        return [
            {"id": i, "content": token, **flags, "special": special[kind]}
            for i, (token, kind) in enumerate(zip(self.tokens, self.types, strict=True))
            if kind in special and self.ids[token] == i
        ]


def _pre_tokenizer(file: Gguf) -> PreTokenizer:
    name = file.metadata.get("tokenizer.ggml.pre")
    known = PRE_TOKENIZERS.get(ALIASES.get(name, name)) if isinstance(name, str) else None
    if known is None:
        supported = [*PRE_TOKENIZERS, *ALIASES]
        nearest = get_close_matches(str(name), supported, n=1, cutoff=0)[0]
        raise UnsupportedModel(
            f"{file.path}: pre-tokenizer {name!r:.40} isn't supported; supported: {', '.join(supported)}; "
            f"nearest: {nearest}"
        )
    return known


def _byte_level(vocabulary: Vocabulary, words: PreTokenizer) -> dict[str, Any]:
    """Merges stay "left right" strings, as both files spell them; the `tokenizers` library checks them as it loads."""
    merges = vocabulary.strings("merges")
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": words.gpt2_words}
    steps: list[dict[str, Any]] = [{"type": "Digits", "individual_digits": True}] if words.digits else []
    if words.punctuation:
        steps.append({"type": "Punctuation", "behavior": "Contiguous"})
    steps += map(_split, words.patterns)
    triples = [{"type": "Digits", "individual_digits": False}, _split("[0-9][0-9][0-9]")] if words.triples else []
    return _tokenizer_json(
        vocabulary,
        merges=merges,
        normalizer={"type": words.normalizer} if words.normalizer else None,
        pre_tokenizer={"type": "Sequence", "pretokenizers": [*steps, byte_level, *triples]},
        decoder=byte_level | {"use_regex": True},
        ignore_merges=words.whole_words,
    )


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _sentencepiece(vocabulary: Vocabulary) -> dict[str, Any]:
    """Spaces are spelt "▁"; a character that no token has becomes its bytes' tokens."""
    scores = vocabulary.column("scores", "f")
    if any(byte_token(byte) not in vocabulary.ids for byte in range(256)):
        fail(vocabulary.file.path, "tokenizer.ggml.tokens lacks some of the 256 byte tokens <0x00> to <0xFF>")
    prefix = vocabulary.flag("add_space_prefix", True)
    normalizers: list[dict[str, Any]] = [{"type": "Prepend", "prepend": "▁"}] if prefix else []
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    mergeable = [kind in (NORMAL, USER_DEFINED, UNUSED) for kind in vocabulary.types]
    unknown = vocabulary.token_id("unknown")
    return _tokenizer_json(
        vocabulary,
        merges=merges_from_scores(vocabulary.tokens, scores.tolist(), mergeable),
        normalizer={
            "type": "Sequence",
            "normalizers": [*normalizers, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}],
        },
        pre_tokenizer=None,
        decoder={"type": "Sequence", "decoders": decoders},
        byte_fallback=True,
        fuse_unk=True,
        unk_token=None if unknown is None else vocabulary.tokens[unknown],
    )


def _tokenizer_json(
    vocabulary: Vocabulary,
    *,
    merges: list[str] | list[list[str]],
    normalizer: dict[str, Any] | None,
    pre_tokenizer: dict[str, Any] | None,
    decoder: dict[str, Any],
    **model: Any,
) -> dict[str, Any]:
    bpe = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": vocabulary.added_tokens(),
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": decoder,
        "model": bpe | model | {"vocab": vocabulary.ids, "merges": merges},
    }


def _special(vocabulary: Vocabulary, words: PreTokenizer) -> SpecialTokens:
    bos, eos, pad, unknown = (vocabulary.token_id(name) for name in ("bos", "eos", "padding", "unknown"))
    eot = vocabulary.token_id("eot")
    if eot is None:
        controls = (vocabulary.ids[end] for end in TURN_ENDS if end in vocabulary.ids)
        eot = next((i for i in controls if vocabulary.types[i] == CONTROL), None)
    ends = [i for i in (eos, eot, vocabulary.token_id("eom")) if i is not None]
    named = {"bos_token": bos, "eos_token": eos, "unk_token": unknown, "pad_token": pad}
    return SpecialTokens(
        vocab_size=len(vocabulary.tokens),
        bos_id=bos,
        eos_ids=tuple(dict.fromkeys(ends)),
        pad_id=pad,
        eot_id=eot,
        add_bos=bos is not None and vocabulary.flag("add_bos_token", words.add_bos),
        names=tuple((name, vocabulary.tokens[i]) for name, i in named.items() if i is not None),
    )


def _post_processor(vocabulary: Vocabulary, special: SpecialTokens) -> dict[str, Any] | None:
    def named(i: int | None, wanted: bool) -> tuple[str, int] | None:
        return (vocabulary.tokens[i], i) if wanted and i is not None else None

    add_eos = vocabulary.flag("add_eos_token", False)
    eos = vocabulary.token_id("eos")
    return bos_eos_template(named(special.bos_id, special.add_bos), named(eos, add_eos))
