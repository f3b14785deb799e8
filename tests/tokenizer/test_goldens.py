"""Ids against other people's tokenizers: goldens of llama.cpp, transformers and SentencePiece.

tools/tokenizer_goldens.py makes them and says which is whose. The toy vocabulary's merges cross word borders on
purpose, so a wrong pre-tokenizer can't hide.
"""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints.gguf_files import write_bpe_gguf, write_sentencepiece_gguf
from tests.tokenizer.texts import texts
from zerokl import checkpoints
from zerokl.checkpoints.gguf import read_gguf
from zerokl.checkpoints.gguf_tokenizer import read_tokenizer
from zerokl.checkpoints.packaged_model import packaged_model
from zerokl.tokenizer import Tokenizer

KINDS = ("gpt-2", "llama-bpe", "qwen2", "smollm")
GOLDENS = Path(__file__).parent.parent / "goldens" / "tokenizer"


@pytest.fixture(scope="module")
def toy() -> Any:
    return json.loads((GOLDENS / "toy.json").read_text())


@pytest.mark.parametrize("kind", KINDS)
def test_byte_level_ids_are_the_oracles(toy: Any, tmp_path: Path, kind: str) -> None:
    file = write_bpe_gguf(tmp_path / "x.gguf", kind, toy["bpe"]["merges"], toy["bpe"]["special"])
    assert_same_ids(load(file), toy["ids"][kind])


def test_sentencepiece_ids_are_the_oracles(toy: Any, tmp_path: Path) -> None:
    pieces = toy["sentencepiece"]
    file = write_sentencepiece_gguf(tmp_path / "x.gguf", pieces["tokens"], pieces["scores"], pieces["types"])
    assert_same_ids(load(file), toy["ids"]["llama"])


def test_goldens_tell_the_pre_tokenizers_apart(toy: Any) -> None:
    """The guard's own test: each kind has texts that it alone cuts as it does."""
    for kind in KINDS:
        for other in KINDS[: KINDS.index(kind)]:
            assert toy["ids"][kind] != toy["ids"][other]


@pytest.mark.model
def test_smollm2_ids_are_llama_cpps() -> None:
    golden = json.loads((GOLDENS / "smollm2.json").read_text())
    path = packaged_model()
    if path is None:
        pytest.skip("the packaged model is not in the cache; `zerokl serve` fetches it")
    assert sha256(path.read_bytes()).hexdigest() == golden["sha256"]
    files = checkpoints.open(path).tokenizer
    assert files is not None
    assert_same_ids(Tokenizer(files), golden["ids"])


def load(file: Path) -> Tokenizer:
    files = read_tokenizer(read_gguf(file))
    assert files is not None
    return Tokenizer(files)


def assert_same_ids(tokenizer: Tokenizer, expected: list[list[int]]) -> None:
    found = [tokenizer.encode(text, add_special_tokens=False) for text in texts()]
    different = {text: (a, b) for text, a, b in zip(texts(), found, expected, strict=True) if a != b}
    assert not different, f"{len(different)} of {len(found)} texts"
