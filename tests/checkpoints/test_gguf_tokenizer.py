"""GGUF's tokenizer keys: which are understood, what follows where they are silent, and what is refused.

That the ids are right is proved against other people's tokenizers in tests/tokenizer/test_goldens.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints.gguf_files import CONTROL, NORMAL, USER_DEFINED, write_bpe_gguf, write_sentencepiece_gguf
from zerokl.checkpoints.gguf import read_gguf
from zerokl.checkpoints.gguf_tokenizer import read_tokenizer
from zerokl.checkpoints.sentencepiece import byte_token, merges_from_scores
from zerokl.errors import CheckpointError, UnsupportedModel
from zerokl.tokenizer import Tokenizer
from zerokl.types import TokenizerFiles

MERGES = ["t h", "th e"]
BYTE_PIECES = [byte_token(byte) for byte in range(256)]
PIECES = ["<unk>", "<s>", "</s>", *BYTE_PIECES, "▁", "a", "b", "ab", "▁ab"]
SCORES = [0.0] * 259 + [-5.0, -6.0, -7.0, -1.0, -2.0]
TYPES = [2, CONTROL, CONTROL, *[6] * 256, *[NORMAL] * 5]


def read(path: Path) -> TokenizerFiles:
    files = read_tokenizer(read_gguf(path))
    assert files is not None
    return files


def bpe(path: Path, pre: str = "gpt-2", special: list[str] | None = None, **keys: Any) -> TokenizerFiles:
    return read(write_bpe_gguf(path / "x.gguf", pre, MERGES, special or ["<|end|>"], **keys))


def pieces(path: Path, **keys: Any) -> TokenizerFiles:
    return read(write_sentencepiece_gguf(path / "x.gguf", PIECES, SCORES, TYPES, **keys))


@pytest.mark.parametrize(
    ("pre", "keys", "adds"),
    [
        ("llama-bpe", {"tokenizer__ggml__bos_token_id": 258}, True),
        ("llama-bpe", {"tokenizer__ggml__bos_token_id": 258, "tokenizer__ggml__add_bos_token": False}, False),
        ("smollm", {"tokenizer__ggml__bos_token_id": 258}, False),
        ("smollm", {"tokenizer__ggml__bos_token_id": 258, "tokenizer__ggml__add_bos_token": True}, True),
        ("llama-bpe", {}, False),
    ],
)
def test_bos_is_added_by_the_key_or_by_the_kind(tmp_path: Path, pre: str, keys: dict[str, Any], adds: bool) -> None:
    files = bpe(tmp_path, pre, **keys)
    assert files.special.add_bos is adds
    tokenizer = Tokenizer(files)
    the = tokenizer.encode("the", add_special_tokens=False)
    assert tokenizer.encode("the") == ([258, *the] if adds else the)


def test_eos_is_added_where_the_file_says_so(tmp_path: Path) -> None:
    tokenizer = Tokenizer(pieces(tmp_path, tokenizer__ggml__add_eos_token=True))
    assert tokenizer.encode("ab") == [1, PIECES.index("▁ab"), 2]


def test_sentencepiece_adds_bos_and_a_space_where_the_file_is_silent(tmp_path: Path) -> None:
    tokenizer = Tokenizer(pieces(tmp_path))
    assert tokenizer.encode("ab") == [1, PIECES.index("▁ab")]
    assert tokenizer.decode(tokenizer.encode("ab")) == "ab"


def test_sentencepiece_without_space_prefix(tmp_path: Path) -> None:
    tokenizer = Tokenizer(pieces(tmp_path, tokenizer__ggml__add_space_prefix=False))
    assert tokenizer.encode("ab", add_special_tokens=False) == [PIECES.index("ab")]
    assert tokenizer.decode([PIECES.index("▁ab")]) == " ab"


def test_characters_without_a_piece_become_bytes(tmp_path: Path) -> None:
    tokenizer = Tokenizer(pieces(tmp_path))
    ids = tokenizer.encode("é", add_special_tokens=False)
    assert ids == [PIECES.index("▁"), PIECES.index("<0xC3>"), PIECES.index("<0xA9>")]
    assert tokenizer.decode(ids) == "é"


@pytest.mark.parametrize("end", ["<|eot_id|>", "<|im_end|>", "<end_of_turn>"])
def test_end_of_turn_is_found_by_name_and_ends_a_generation(tmp_path: Path, end: str) -> None:
    special = bpe(tmp_path, special=[end, "<|endoftext|>"]).special
    assert (special.eot_id, special.eos_ids) == (258, (259, 258))


def test_end_of_turn_of_the_file_wins(tmp_path: Path) -> None:
    special = bpe(tmp_path, special=["<|im_end|>", "<x>", "<e>"], tokenizer__ggml__eot_token_id=259).special
    assert (special.eot_id, special.eos_ids) == (259, (260, 259))


def test_user_defined_tokens_are_found_in_text_but_not_special(tmp_path: Path) -> None:
    types = [*TYPES[:-1], USER_DEFINED]
    files = read(write_sentencepiece_gguf(tmp_path / "x.gguf", [*PIECES[:-1], "<think>"], SCORES, types))
    tokenizer = Tokenizer(files)
    think = len(PIECES) - 1
    assert think in tokenizer.encode("a<think>b")
    assert "<think>" in tokenizer.decode([think])
    assert not next(t for t in json.loads(files.tokenizer_json)["added_tokens"] if t["id"] == think)["special"]


def test_names_for_the_template_are_the_tokens(tmp_path: Path) -> None:
    assert dict(pieces(tmp_path).special.names) == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def test_merges_follow_scores_then_ids() -> None:
    tokens, scores = ["a", "b", "ab", "aa", "aab"], [0, 0, -2.0, -1.0, -3.0]
    assert merges_from_scores(tokens, scores, [True] * 5) == [["a", "a"], ["a", "b"], ["a", "ab"], ["aa", "b"]]


def test_unmergeable_tokens_are_no_parts() -> None:
    assert merges_from_scores(["a", "b", "ab"], [0, 0, 0], [True, False, True]) == []


@pytest.mark.parametrize(
    ("keys", "cause"),
    [
        ({"tokenizer__ggml__bos_token_id": 999}, "bos_token_id is 999, not one of 259 tokens"),
        ({"tokenizer__ggml__padding_token_id": "x"}, "padding_token_id is 'x'"),
        (
            {"tokenizer__ggml__bos_token_id": 258, "tokenizer__ggml__add_bos_token": 1},
            "add_bos_token is 1, not true or false",
        ),
    ],
)
def test_key_of_a_wrong_value_is_named(tmp_path: Path, keys: dict[str, Any], cause: str) -> None:
    with pytest.raises(CheckpointError, match=cause):
        bpe(tmp_path, **keys)


@pytest.mark.parametrize("pre", ["unheard-of", "", "default"])
def test_unknown_pre_tokenizer_is_refused_not_guessed(tmp_path: Path, pre: str) -> None:
    with pytest.raises(UnsupportedModel, match=r"isn.t supported; supported: gpt-2, smollm, .*; nearest: "):
        bpe(tmp_path, pre)


def test_scores_of_another_length_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="scores must hold one number for each of 264 tokens"):
        read(write_sentencepiece_gguf(tmp_path / "x.gguf", PIECES, SCORES[:-1], TYPES))


def test_missing_byte_tokens_are_refused(tmp_path: Path) -> None:
    tokens = [token.replace("<0x41>", "<0x41") for token in PIECES]
    with pytest.raises(CheckpointError, match="lacks some of the 256 byte tokens"):
        read(write_sentencepiece_gguf(tmp_path / "x.gguf", tokens, SCORES, TYPES))


def test_merge_of_unknown_parts_is_one_error(tmp_path: Path) -> None:
    files = read(write_bpe_gguf(tmp_path / "x.gguf", "gpt-2", MERGES, ["<e>"]))
    broken = files.tokenizer_json.replace('"th e"', '"zz e"')
    with pytest.raises(CheckpointError, match="zz"):
        Tokenizer(TokenizerFiles(broken, files.special))
