"""Ids, bytes and names of tokens; the run folder; the digest."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.checkpoints.tiny import add_bos, make_tiny_llama
from tests.tokenizer.texts import texts
from tests.tokenizer.tokenizers import byte_level, byte_level_files, metaspace, sentencepiece
from zerokl import checkpoints
from zerokl.errors import CheckpointError, InvalidRequest
from zerokl.tokenizer import Tokenizer
from zerokl.tokenizer.run_folder import read_run_folder, write_run_folder
from zerokl.types import SpecialTokens, TokenizerFiles


@pytest.mark.parametrize("text", texts())
def test_byte_level_text_survives_the_round_trip(text: str) -> None:
    assert byte_level().decode(byte_level().encode(text), skip_special_tokens=False) == text


def test_bytes_of_all_tokens_are_the_bytes_of_the_text() -> None:
    for text in texts():
        ids = byte_level().encode(text)
        assert b"".join(map(byte_level().token_bytes, ids)) == text.encode()


def test_token_text_is_the_text_or_its_bytes() -> None:
    tokenizer = byte_level()
    the, half = tokenizer.token_id("Ġthe"), tokenizer.token_id("ðŁ")
    assert the is not None
    assert half is not None
    assert (tokenizer.token_text(the), tokenizer.token_bytes(the)) == (" the", b" the")
    assert (tokenizer.token_text(half), tokenizer.token_bytes(half)) == (r"bytes:\xf0\x9f", b"\xf0\x9f")


def test_sentencepiece_tokens_keep_their_space_and_bytes() -> None:
    tokenizer = sentencepiece()
    assert [tokenizer.token_text(tokenizer.token_id(t) or -1) for t in ("▁the", "<0xE4>", "<0x41>", "<s>")] == [
        " the",
        r"bytes:\xe4",
        "A",
        "<s>",
    ]


def test_ids_without_an_entry_have_no_text() -> None:
    tokenizer = byte_level()
    assert tokenizer.token_bytes(tokenizer.vocab_size - 1) == b""
    assert tokenizer.decode([tokenizer.vocab_size - 1, 10**6]) == ""


def test_special_tokens_are_skipped_or_shown() -> None:
    tokenizer = byte_level()
    ids = tokenizer.encode("a<|im_end|>b")
    assert tokenizer.special.eos_ids[0] in ids
    assert tokenizer.decode(ids) == "ab"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "a<|im_end|>b"


def test_unknown_decoder_is_left_to_the_library() -> None:
    tokenizer = metaspace()
    ids = [tokenizer.token_id(t) or 0 for t in ("▁Hello", "▁the", "th", "e")]
    assert tokenizer.decode(ids) == "Hello thethe"


def test_bos_is_added_to_texts_and_not_to_chats(tmp_path: Path) -> None:
    folder = make_tiny_llama(tmp_path, 0)
    add_bos(folder)
    files = checkpoints.open(folder).tokenizer
    assert files is not None
    tokenizer = Tokenizer(files)
    bos = tokenizer.special.bos_id
    assert tokenizer.special.add_bos
    assert tokenizer.encode("a")[0] == bos
    assert tokenizer.encode("a", add_special_tokens=False)[0] != bos
    assert tokenizer.encode_chat([{"role": "user", "content": "a"}])[0] != bos
    assert tokenizer.encode("<|endoftext|>a")[:2] == [bos, bos]  # never de-duplicated


def test_lone_surrogate_is_the_callers_fault() -> None:
    with pytest.raises(InvalidRequest, match="lone surrogate"):
        byte_level().encode("a\ud800")


def test_run_folder_gives_the_same_tokenizer(tmp_path: Path) -> None:
    files = byte_level_files()
    write_run_folder(tmp_path / "run", files)
    assert read_run_folder(tmp_path / "run") == files
    assert Tokenizer.load(tmp_path / "run").digest == Tokenizer(files).digest
    assert {path.name for path in (tmp_path / "run").iterdir()} == {
        "tokenizer.json",
        "chat_template.jinja",
        "special_tokens.json",
    }


@pytest.mark.parametrize("name", ["tokenizer.json", "chat_template.jinja", "special_tokens.json"])
def test_incomplete_or_broken_run_folder_is_one_error(tmp_path: Path, name: str) -> None:
    write_run_folder(tmp_path, byte_level_files())
    (tmp_path / name).write_bytes(b"\xff{")
    with pytest.raises(CheckpointError, match="run folder"):
        Tokenizer.load(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(CheckpointError, match="run folder"):
        Tokenizer.load(tmp_path)


def test_digest_changes_with_anything_that_changes_a_prompt() -> None:
    files = byte_level_files()
    changed = [
        replace(files, chat_template=files.chat_template + " "),
        replace(files, tokenizer_json=files.tokenizer_json + " "),
        replace(files, special=replace(files.special, eos_ids=())),
        replace(files, special=replace(files.special, vocab_size=files.special.vocab_size + 1)),
    ]
    digests = {Tokenizer(other).digest for other in (files, *changed)}
    assert len(digests) == 5
    assert Tokenizer(files).digest == byte_level().digest


@pytest.mark.parametrize("text", ["", "{}", "null", '{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["x y"]}}'])
def test_a_file_that_the_library_refuses_is_a_checkpoint_error(text: str) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        Tokenizer(TokenizerFiles(text, SpecialTokens(1)))
