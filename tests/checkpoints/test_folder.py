"""A Hugging Face folder: config, tokenizer settings and special ids, resolved as transformers would; or one error."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.checkpoints.tiny import CHAT_TEMPLATE, add_bos, make_tiny_llama
from zerokl import checkpoints
from zerokl.checkpoints.special import starts_with_bos
from zerokl.errors import CallerError, CheckpointError
from zerokl.types import SpecialTokens, TokenizerFiles


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_tiny_llama(tmp_path / "model", 0)


def change(path: Path, **keys: Any) -> None:
    """Set keys of a JSON file; None removes one."""
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({key: value for key, value in (content | keys).items() if value is not None}))


def tokenizer_of(folder: Path) -> TokenizerFiles:
    files = checkpoints.open(folder).tokenizer
    assert files is not None
    return files


def special_of(folder: Path) -> SpecialTokens:
    return tokenizer_of(folder).special


def test_special_ids_and_names_are_found(folder: Path) -> None:
    special = special_of(folder)
    assert (special.vocab_size, special.bos_id, special.eos_ids, special.pad_id) == (284, 280, (282,), 283)
    assert dict(special.names) == {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>", "pad_token": "<|pad|>"}
    assert not special.add_bos


def test_all_ends_of_the_generation_config_count_after_the_tokenizers_own(folder: Path) -> None:
    change(folder / "generation_config.json", eos_token_id=[280, 282, 283])
    assert special_of(folder).eos_ids == (282, 280, 283)


def test_config_names_the_end_where_nothing_else_does(folder: Path) -> None:
    (folder / "generation_config.json").unlink()
    change(folder / "tokenizer_config.json", eos_token=None)
    change(folder / "config.json", eos_token_id=281)
    assert special_of(folder).eos_ids == (281,)


def test_special_id_beyond_the_vocabulary_is_refused(folder: Path) -> None:
    change(folder / "generation_config.json", eos_token_id=284)
    with pytest.raises(CheckpointError, match="special id 284 is outside the vocabulary of 284"):
        checkpoints.open(folder)


@pytest.mark.parametrize("flag", [None, True, False])
@pytest.mark.parametrize("adds", [True, False])
def test_tokenizer_json_alone_decides_about_bos(folder: Path, adds: bool, flag: bool | None) -> None:
    """As transformers 5.24 does for each of these six, measured with four tokenizer classes."""
    if adds:
        add_bos(folder)
    change(folder / "tokenizer_config.json", add_bos_token=flag, add_eos_token=flag)
    files = tokenizer_of(folder)
    ids = tokenizers.Tokenizer.from_str(files.tokenizer_json).encode("a").ids
    assert ids == ([280, 97] if adds else [97])
    assert files.special.add_bos is adds


def test_truncation_and_padding_of_the_file_are_switched_off(folder: Path) -> None:
    truncation = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    change(folder / "tokenizer.json", truncation=truncation)
    found = json.loads(tokenizer_of(folder).tokenizer_json)
    assert found["truncation"] is None
    assert found["padding"] is None


def test_tokens_that_only_the_config_knows_are_added(folder: Path) -> None:
    token = {
        "content": "<tool>",
        "lstrip": False,
        "rstrip": False,
        "single_word": False,
        "normalized": False,
        "special": True,
    }
    change(folder / "tokenizer_config.json", added_tokens_decoder={"284": token})
    change(folder / "config.json", vocab_size=285)
    added = json.loads(tokenizer_of(folder).tokenizer_json)["added_tokens"]
    assert added[-1]["id"] == 284
    assert added[-1]["content"] == "<tool>"


def test_chat_template_is_found_wherever_it_stands(folder: Path) -> None:
    assert tokenizer_of(folder).chat_template == CHAT_TEMPLATE
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    change(folder / "tokenizer_config.json", chat_template=named)
    assert tokenizer_of(folder).chat_template == "d"
    (folder / "chat_template.jinja").write_text("file é")
    assert tokenizer_of(folder).chat_template == "file é"
    change(folder / "tokenizer_config.json", chat_template=None)
    (folder / "chat_template.jinja").unlink()
    assert tokenizer_of(folder).chat_template == ""


def test_folder_without_a_tokenizer_is_still_a_checkpoint(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    assert checkpoints.open(folder).tokenizer is None


@pytest.mark.parametrize(
    ("name", "cause"),
    [("config.json", "no config.json"), ("model.safetensors", "no weights")],
)
def test_missing_file_is_named(folder: Path, name: str, cause: str) -> None:
    (folder / name).unlink()
    with pytest.raises(CheckpointError, match=cause):
        checkpoints.open(folder)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"null", b'{"a":' + b"[" * 100_000, b"1e999"])
def test_broken_json_is_one_error_that_names_the_file(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        checkpoints.open(folder)


def test_missing_path_and_unreadable_kinds_are_one_error(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere", tmp_path / "x" / "y.gguf", Path("a\0b")):
        with pytest.raises(CheckpointError):
            checkpoints.open(path)


def test_load_format_insists() -> None:
    with pytest.raises(CheckpointError, match="needs a GGUF file"):
        checkpoints.open(Path(__file__).parent, load_format="gguf")
    with pytest.raises(CheckpointError, match="needs a folder"):
        checkpoints.open(__file__, load_format="safetensors")


KEYS = ["id", "ids", "content", "type", "single", "special_tokens", "SpecialToken", "processors", "cls", "0", "300"]
leaves = st.none() | st.booleans() | st.integers(-5, 400) | st.floats(allow_nan=False)
texts = st.sampled_from(["", "a", "<|im_end|>", "Sequence", "TemplateProcessing", "BertProcessing"])
anything = st.recursive(
    leaves | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=8,
)
PLACES = [
    ("config.json", ["vocab_size", "eos_token_id", "text_config"]),
    ("generation_config.json", ["eos_token_id", "bos_token_id", "pad_token_id"]),
    ("tokenizer.json", ["model", "added_tokens", "post_processor", "decoder"]),
    ("tokenizer_config.json", ["bos_token", "eos_token", "add_bos_token", "added_tokens_decoder", "chat_template"]),
    ("special_tokens_map.json", ["bos_token", "unk_token"]),
]


@settings(max_examples=300, deadline=None)
@given(processor=anything)
def test_any_post_processor_can_be_asked_for_its_bos(processor: object) -> None:
    assert starts_with_bos({"post_processor": processor}, 5) in (False, True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("any") / "model", 0, num_hidden_layers=1)


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_any_value_anywhere_is_read_or_is_our_error(model: Path, data: st.DataObject) -> None:
    name, keys = data.draw(st.sampled_from(PLACES))
    path = model / name
    before = path.read_bytes() if path.exists() else b"{}"
    try:
        change(path, **{data.draw(st.sampled_from(keys)): data.draw(anything)})
        with contextlib.suppress(CallerError):
            checkpoints.open(model)
    finally:
        path.write_bytes(before)
